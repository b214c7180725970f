#include <algorithm>

#include "tracker/head/head_impl.h"

namespace mesh::head {
namespace {

constexpr std::uint32_t kStepFailures = 2;  // at one hop: then another node shall try

/// Whether `hops` run exactly `range`, in order. Only the first hop of a first route may have no layers.
bool covers(const std::vector<wire::HopAddress>& hops, const LayerRange& range, bool first) {
  std::uint32_t at = range.begin;
  for (std::size_t i = 0; i < hops.size(); ++i) {
    const LayerRange& part = hops[i].range;
    if (part.begin != at || part.end > range.end || part.end < part.begin) return false;
    if (part.empty() && !(first && i == 0 && hops.size() > 1)) return false;
    at = part.end;
  }
  return !hops.empty() && at == range.end;
}

}  // namespace

void HeadTable::Impl::lose(HeadSession& session, std::size_t index, const Status& why, TimePoint now) {
  HopState& hop = session.hops[index];
  if (hop.lost) return;
  if (index == 0) {
    fail(session, with_context(why, "the tracker's own layers"), now);
    return;
  }
  hop.lost = true;
  hop.pending = false;
  session.excluded[hop.address.node] = now + options_.exclusion;
  // An overloaded mesh says so soon; one that lost a node in the middle of an answer waits for a replacement.
  const bool busy =
      why.code() == StatusCode::kResourceExhausted && session.awaited() == session.request.prompt.size();
  session.route_wait_until = now + (busy ? options_.no_room_wait : options_.replacement_wait);
  session.route_status = error(busy ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
                               "no node is ready to run layers {} in place of one that was lost ({})",
                               to_string(hop.address.range), message_of(why));
}

void HeadTable::Impl::want_routes(HeadSession& session, TimePoint now) {
  session.phase = Phase::kRouting;
  session.wave = Wave::kNone;
  session.groups.clear();
  for (std::size_t i = 0; i < session.hops.size(); ++i) {
    session.hops[i].pending = false;
    if (!session.hops[i].lost) continue;
    const LayerRange& range = session.hops[i].address.range;
    if (!session.groups.empty() && session.groups.back().last + 1 == i) {
      session.groups.back().last = i;
      session.groups.back().range.end = range.end;
    } else {
      session.groups.push_back({range, i, i, ++last_request_, std::nullopt});
    }
  }
  ask_routes(session, now);
}

void HeadTable::Impl::ask_routes(HeadSession& session, TimePoint now) {
  session.route_retry_at = now + options_.route_retry;
  std::erase_if(session.excluded, [&](const auto& entry) { return entry.second <= now; });
  std::vector<NodeId> excluded;
  for (const auto& [node, until] : session.excluded) excluded.push_back(node);
  for (const LostGroup& group : session.groups) {
    if (group.found) continue;
    actions_.push_back(RouteWanted{session.id(), group.request, session.request.identity, group.range,
                                   session.generation.value == 0, excluded});
  }
}

void HeadTable::Impl::route_found(const SessionId& id, std::uint64_t request,
                                  std::vector<wire::HopAddress> hops, TimePoint now) {
  HeadSession* session = find(id);
  if (!session || session->phase != Phase::kRouting) return;
  const auto group = std::find_if(session->groups.begin(), session->groups.end(),
                                  [&](const LostGroup& g) { return g.request == request; });
  const bool first = session->generation.value == 0;
  if (group == session->groups.end() || group->found || !covers(hops, group->range, first)) return;
  group->found = std::move(hops);
  const bool all = std::all_of(session->groups.begin(), session->groups.end(),
                               [](const LostGroup& g) { return g.found.has_value(); });
  if (all) replace_lost(*session, now);
  if (HeadSession* still = find(id)) reschedule(*still);
}

void HeadTable::Impl::replace_lost(HeadSession& session, TimePoint now) {
  const bool first = session.generation.value == 0;
  std::vector<HopState> hops;
  std::size_t next_old = 0;
  std::vector<std::pair<HopState, std::size_t>> left;
  for (const LostGroup& group : session.groups) {
    for (; next_old < group.first && !first; ++next_old) hops.push_back(session.hops[next_old]);
    for (const wire::HopAddress& address : *group.found) {
      HopState hop;
      hop.address = address;
      hops.push_back(hop);
    }
    for (; next_old <= group.last && !first; ++next_old) left.emplace_back(session.hops[next_old], next_old);
  }
  for (; next_old < session.hops.size(); ++next_old) hops.push_back(session.hops[next_old]);
  session.groups.clear();
  for (const auto& [hop, index] : left) close_at(session, hop, index, now);
  session.hops = std::move(hops);
  if (!first) return fence(session, "a hop was replaced", now);
  session.generation = {1};
  if (!session.offer.empty()) {
    session.phase = Phase::kOpening;
    return begin_wave(session, Wave::kFence, now);
  }
  // A new session: every cursor is 0, so one wave does.
  resume(session, now);
}

void HeadTable::Impl::route_failed(const SessionId& id, std::uint64_t request, const Status& status,
                                   TimePoint now) {
  HeadSession* session = find(id);
  if (!session || session->phase != Phase::kRouting) return;
  const bool ours = std::any_of(session->groups.begin(), session->groups.end(),
                                [&](const LostGroup& g) { return g.request == request; });
  if (ours) fail(*session, status, now);
}

/// Raises the generation and opens every hop anew, without emit_from: then all cursors stand still.
void HeadTable::Impl::fence(HeadSession& session, std::string_view why, TimePoint now) {
  while (!session.failovers.empty() && session.failovers.front() <= now - options_.failover_period) {
    session.failovers.pop_front();
  }
  if (session.failovers.size() >= options_.max_failovers) {
    return fail(
        session,
        error(StatusCode::kUnavailable, "the session failed {} times within {} s, last because {}",
              session.failovers.size() + 1,
              std::chrono::duration_cast<std::chrono::seconds>(options_.failover_period).count(), why),
        now);
  }
  session.failovers.push_back(now);
  ++counts_.failovers;
  open_anew(session, now);
}

/// A hop's cache made room for others, which is no failure; but a session that cannot get on between two
/// times is better off elsewhere.
void HeadTable::Impl::refill(HeadSession& session, std::string_view why, TimePoint now) {
  if (session.refilled_at && *session.refilled_at == session.awaited()) return fence(session, why, now);
  session.refilled_at = session.awaited();
  ++counts_.refills;
  open_anew(session, now);
}

void HeadTable::Impl::open_anew(HeadSession& session, TimePoint now) {
  session.generation = session.generation.next();
  session.phase = Phase::kOpening;
  session.step_started.reset();
  begin_wave(session, Wave::kFence, now);
}

void HeadTable::Impl::resume(HeadSession& session, TimePoint now) {
  session.phase = Phase::kOpening;
  Position need = session.awaited() - 1;
  for (std::size_t i = session.hops.size(); i-- > 0;) {
    const wire::CursorEntry& state = session.hops[i].state;
    const Position next = std::min(state.cursor.next, session.awaited());
    need = need < state.kept_from ? std::min(next, need) : next;
  }
  session.outbound.restart();
  session.outbound.set_emit_from(need);
  feed_from(session, need);
  begin_wave(session, Wave::kResume, now);
}

void HeadTable::Impl::report(const NodeId& from, const wire::Report& report, TimePoint now) {
  HeadSession* session = find(report.hop.session);
  if (!session || session->phase == Phase::kClosing || session->generation != report.generation) return;
  if (session->phase == Phase::kRouting) return;
  const auto hop = std::find_if(session->hops.begin(), session->hops.end(), [&](const HopState& h) {
    return h.address.node == from && h.address.range.begin == report.hop.begin;
  });
  if (hop == session->hops.end()) return;
  const auto index = static_cast<std::size_t>(hop - session->hops.begin());
  switch (report.code) {
    case wire::ReportCode::kOutputsDropped:
      return;  // the fence's answer will say so when it matters
    case wire::ReportCode::kDeadline:
      fail(*session, error(StatusCode::kDeadlineExceeded, "{}", report.message), now);
      return;
    case wire::ReportCode::kNextHopUnreachable:
      if (session->phase == Phase::kRunning && session->wave == Wave::kNone)
        begin_wave(*session, Wave::kProbe, now);
      break;
    case wire::ReportCode::kNextHopRefuses:
      fence(*session, report.message, now);
      break;
    case wire::ReportCode::kCacheDropped:
      refill(*session, report.message, now);
      break;
    case wire::ReportCode::kStepFailed:
      if (++hop->step_failures >= kStepFailures && index > 0) {
        lose(*session, index, error(StatusCode::kInternal, "{}", report.message), now);
        want_routes(*session, now);
      } else {
        fence(*session, report.message, now);
      }
      break;
  }
  if (HeadSession* still = find(report.hop.session)) reschedule(*still);
}

void HeadTable::Impl::node_lost(const NodeId& node, TimePoint now) {
  std::vector<SessionId> touched;
  for (auto& [id, session] : sessions_) {
    if (session.phase == Phase::kClosing) continue;
    bool any = false;
    for (std::size_t i = 1; i < session.hops.size(); ++i) {
      if (session.hops[i].address.node != node || session.hops[i].lost) continue;
      lose(session, i, error(StatusCode::kUnavailable, "its lease is over"), now);
      any = true;
    }
    if (any) touched.push_back(id);
  }
  for (const SessionId& id : touched) {
    HeadSession& session = *find(id);
    if (session.phase == Phase::kOpening) {
      wave_step(session, now);
    } else {
      want_routes(session, now);
    }
    if (HeadSession* still = find(id)) reschedule(*still);
  }
}

}  // namespace mesh::head
