#include "tracker/head/head_table.h"

#include <algorithm>

#include "common/identity/mac.h"
#include "tracker/head/head_impl.h"

namespace mesh::head {
namespace {

using std::chrono::milliseconds;

/// In answer timeouts: a call waits for one in its node's queue and takes one, so after that it was lost.
constexpr int kLongestAnswer = 3;

void earlier(std::optional<TimePoint>& first, std::optional<TimePoint> when) {
  if (when && (!first || *when < *first)) first = when;
}

}  // namespace

HeadSession* HeadTable::Impl::find(const SessionId& session) {
  const auto at = sessions_.find(session);
  return at == sessions_.end() ? nullptr : &at->second;
}

HeadSession* HeadTable::Impl::find(const HopRef& ref) {
  HeadSession* session = find(ref.session);
  const bool current = session && session->generation == ref.generation &&
                       session->phase != Phase::kClosing && ref.index < session->hops.size();
  return current ? session : nullptr;
}

Status HeadTable::Impl::start(StartRequest request, TimePoint now) {
  if (request.prompt.empty() || request.max_tokens == 0 || request.layers == 0) {
    return error(StatusCode::kInvalidArgument,
                 "a session needs a prompt, a token to make and a model with layers");
  }
  if (request.prompt.size() >
      wire::kMaxSessionTokens - std::min(request.max_tokens, wire::kMaxSessionTokens)) {
    return error(StatusCode::kInvalidArgument, "prompt and answer together exceed {} tokens",
                 wire::kMaxSessionTokens);
  }
  if (request.chunk < 32 || request.chunk > wire::kMaxSegmentRows) {
    return error(StatusCode::kInvalidArgument, "a prefill chunk has 32 to {} tokens", wire::kMaxSegmentRows);
  }
  if (find(request.session)) return error(StatusCode::kAlreadyExists, "the session exists");
  const SessionId id = request.session;
  HeadSession& session = sessions_.emplace(id, HeadSession(std::move(request))).first->second;
  session.renew_at = now + milliseconds(options_.lease_ms / 3);
  session.groups.push_back({{0, session.request.layers}, 0, 0, ++last_request_, std::nullopt});
  session.route_status =
      error(StatusCode::kUnavailable, "no nodes are ready to run all {} layers", session.request.layers);
  session.route_wait_until = now + options_.replacement_wait;
  ask_routes(session, now);
  reschedule(session);
  return absl::OkStatus();
}

void HeadTable::Impl::cancel(const SessionId& id, TimePoint now) {
  HeadSession* session = find(id);
  if (!session || session->phase == Phase::kClosing) return;
  close_everywhere(*session, now);
}

void HeadTable::Impl::fail(HeadSession& session, const Status& status, TimePoint now) {
  finish(session, FinishReason::kError, status, now);
}

void HeadTable::Impl::finish(HeadSession& session, FinishReason reason, const Status& status, TimePoint now) {
  if (session.phase == Phase::kClosing) return;
  actions_.push_back(Finished{session.id(), reason, status});
  close_everywhere(session, now);
}

/// May erase the session.
void HeadTable::Impl::close_everywhere(HeadSession& session, TimePoint now) {
  session.phase = Phase::kClosing;
  session.wave = Wave::kNone;
  if (session.generation.value > 0) {
    for (std::size_t i = 0; i < session.hops.size(); ++i) close_at(session, session.hops[i], i, now);
  }
  session.hops.clear();
  reschedule(session);
}

void HeadTable::Impl::close_at(HeadSession& session, const HopState& hop, std::size_t index, TimePoint now) {
  session.closings.emplace(++last_closing_,
                           Closing{hop.address, index, session.generation, hop.opened || !hop.refused, now,
                                   now + milliseconds(options_.lease_ms)});
  retry_closings(session, now);
}

void HeadTable::Impl::retry_closings(HeadSession& session, TimePoint now) {
  std::erase_if(session.closings, [&](const auto& entry) { return entry.second.until <= now; });
  for (auto& [number, closing] : session.closings) {
    if (closing.next_try > now) continue;
    closing.next_try = now + kLongestAnswer * options_.answer_timeout;
    actions_.push_back(CloseHop{{session.id(), closing.generation, closing.index, number},
                                closing.to,
                                {session.id(), closing.generation},
                                closing.frees_room});
  }
}

void HeadTable::Impl::close_answered(const HopRef& ref, const Status& status, TimePoint now) {
  HeadSession* session = find(ref.session);
  if (!session) return;
  const auto at = session->closings.find(ref.wave);
  if (at == session->closings.end()) return;
  if (status.ok()) {
    session->closings.erase(at);
  } else {
    at->second.next_try = now + 5 * options_.retry;
  }
  reschedule(*session);
}

void HeadTable::Impl::renew(HeadSession& session, TimePoint now) {
  session.renew_at = now + milliseconds(options_.lease_ms / 3);
  if (session.generation.value == 0) return;
  for (std::size_t i = 0; i < session.hops.size(); ++i) {
    const HopState& hop = session.hops[i];
    if (!hop.lost) {
      actions_.push_back(
          RenewLease{{session.id(), session.generation, i, 0}, hop.address, options_.lease_ms});
    }
  }
}

void HeadTable::Impl::renew_answered(const HopRef& ref, bool known, TimePoint now) {
  HeadSession* session = find(ref);
  if (!session || known || session->phase != Phase::kRunning) return;
  fence(*session, "a hop does not know the session any more", now);
  reschedule(*session);
}

SessionSecret HeadTable::Impl::derive_secret(const SessionId& session, Generation generation) const {
  const std::string number = std::to_string(generation.value);
  SessionSecret secret;
  for (int half = 0; half < 2; ++half) {
    const Mac mac = compute_mac(seed_, {session.view(), number, half == 0 ? "/a" : "/b"});
    std::copy(mac.bytes.begin(), mac.bytes.end(), secret.bytes.begin() + half * static_cast<int>(Mac::kSize));
  }
  return secret;
}

std::optional<SessionSecret> HeadTable::Impl::secret(const SessionId& id, Generation generation) const {
  const auto at = sessions_.find(id);
  if (at == sessions_.end() || at->second.generation != generation) return std::nullopt;
  return derive_secret(id, generation);
}

/// The session's earliest time; one that is over and closed everywhere is erased.
void HeadTable::Impl::reschedule(HeadSession& session) {
  if (session.phase == Phase::kClosing && session.closings.empty()) {
    due_.clear(session.id());
    sessions_.erase(SessionId(session.id()));
    return;
  }
  std::optional<TimePoint> first;
  for (const auto& [number, closing] : session.closings) {
    earlier(first, closing.next_try);
    earlier(first, closing.until);
  }
  if (session.phase != Phase::kClosing) {
    earlier(first, session.renew_at);
    for (const HopState& hop : session.hops) {
      if (!hop.pending || session.wave == Wave::kNone) continue;
      earlier(first, hop.answer_due);
      earlier(first, hop.retry_at);
    }
  }
  if (session.phase == Phase::kRouting) {
    earlier(first, session.route_retry_at);
    earlier(first, session.route_wait_until);
  }
  if (session.phase == Phase::kRunning) {
    earlier(first, session.credit_at);
    if (session.wave == Wave::kNone)
      earlier(first, session.next_probe ? *session.next_probe : session.step_deadline);
  }
  if (first) {
    due_.set(session.id(), *first);
  } else {
    due_.clear(session.id());
  }
}

void HeadTable::Impl::tick(TimePoint now) {
  while (const auto id = due_.first_due(now)) {
    HeadSession& session = *find(*id);
    on_time(session, now);
    if (HeadSession* still = find(*id)) reschedule(*still);
  }
}

void HeadTable::Impl::on_time(HeadSession& session, TimePoint now) {
  retry_closings(session, now);
  if (session.phase == Phase::kClosing) return;
  if (session.renew_at <= now) renew(session, now);
  if (session.phase == Phase::kRouting) {
    if (session.route_wait_until <= now) {
      const Status status = session.route_status;
      return fail(session, status, now);
    }
    if (session.route_retry_at <= now) ask_routes(session, now);
    return;
  }
  if (session.phase == Phase::kRunning && session.credit_at && *session.credit_at <= now) {
    session.credit_at = now + options_.credit_interval;
    actions_.push_back(AskCursor{{session.id(), session.generation, 0, 0}, session.hops[0].address});
  }
  if (session.wave != Wave::kNone) return wave_time(session, now);
  if (session.phase != Phase::kRunning) return;
  if ((session.next_probe ? *session.next_probe : session.step_deadline) <= now)
    begin_wave(session, Wave::kProbe, now);
}

HeadStats HeadTable::Impl::stats() const {
  HeadStats stats = counts_;
  stats.sessions = sessions_.size();
  for (const auto& [id, session] : sessions_)
    stats.waiting_for_route += session.phase == Phase::kRouting ? 1 : 0;
  return stats;
}

std::vector<wire::HopAddress> HeadTable::Impl::route_of(const SessionId& id) const {
  std::vector<wire::HopAddress> route;
  const auto at = sessions_.find(id);
  if (at == sessions_.end()) return route;
  for (const HopState& hop : at->second.hops) route.push_back(hop.address);
  return route;
}

}  // namespace mesh::head
