#include <algorithm>

#include "tracker/head/head_impl.h"

namespace mesh::head {

void HeadTable::Impl::begin_wave(HeadSession& session, Wave wave, TimePoint now) {
  session.wave = wave;
  ++session.wave_number;
  for (std::size_t i = 0; i < session.hops.size(); ++i) {
    HopState& hop = session.hops[i];
    hop.pending = !hop.lost;
    hop.attempts = 0;
    if (hop.pending) ask(session, i, now);
  }
}

wire::OpenRequest HeadTable::Impl::opening(const HeadSession& session, std::size_t index) const {
  wire::OpenRequest r;
  r.session = session.id();
  r.generation = session.generation;
  r.identity = session.request.identity;
  r.range = session.hops[index].address.range;
  r.takes_ids = index == 0;
  r.max_tokens = session.max_positions();
  r.lease_ms = options_.lease_ms;
  r.head_url = options_.head_url;
  r.secret = derive_secret(session.id(), session.generation);
  if (index + 1 < session.hops.size()) {
    r.next = session.hops[index + 1].address;
  } else {
    r.tail = wire::TailSetup{session.request.sampling, session.ids};
  }
  return r;
}

void HeadTable::Impl::ask(HeadSession& session, std::size_t index, TimePoint now) {
  HopState& hop = session.hops[index];
  ++hop.attempts;
  hop.retry_at.reset();
  hop.answer_due = now + options_.answer_timeout;
  const HopRef ref{session.id(), session.generation, index, session.wave_number};
  if (session.wave == Wave::kProbe) {
    actions_.push_back(AskCursor{ref, hop.address});
    return;
  }
  wire::OpenRequest request = opening(session, index);
  if (session.wave == Wave::kResume) {
    // From the tail up: a hop sends from where its successor's cursor stands, or, when it no longer keeps
    // that far, computes again from there, which moves its own need up.
    Position want = session.awaited() - 1;
    for (std::size_t i = session.hops.size() - 1; i > index; --i) {
      const wire::CursorEntry& state = session.hops[i].state;
      const Position next = std::min(state.cursor.next, session.awaited());
      want = want < state.kept_from ? std::min(next, want) : next;
    }
    request.emit_from = want;
  } else {
    request.prefix = session.offer;
  }
  actions_.push_back(OpenHop{ref, hop.address, std::move(request)});
}

void HeadTable::Impl::attempt_failed(HeadSession& session, std::size_t index, const Status& status,
                                     TimePoint now) {
  HopState& hop = session.hops[index];
  hop.answer_due.reset();
  if (hop.attempts < options_.attempts) {
    hop.retry_at = now + options_.retry;
    return;
  }
  hop.pending = false;
  lose(session, index, status, now);
}

void HeadTable::Impl::wave_time(HeadSession& session, TimePoint now) {
  for (std::size_t i = 0; i < session.hops.size() && session.wave != Wave::kNone; ++i) {
    HopState& hop = session.hops[i];
    if (!hop.pending) continue;
    if (hop.retry_at && *hop.retry_at <= now) {
      ask(session, i, now);
    } else if (hop.answer_due && *hop.answer_due <= now) {
      attempt_failed(session, i, error(StatusCode::kDeadlineExceeded, "no answer in time"), now);
    }
  }
  wave_step(session, now);
}

/// Goes on when every hop has answered or is lost.
void HeadTable::Impl::wave_step(HeadSession& session, TimePoint now) {
  if (session.wave == Wave::kNone) return;
  if (std::any_of(session.hops.begin(), session.hops.end(), [](const HopState& hop) { return hop.pending; }))
    return;
  const Wave wave = session.wave;
  session.wave = Wave::kNone;
  if (std::any_of(session.hops.begin(), session.hops.end(), [](const HopState& hop) { return hop.lost; })) {
    return want_routes(session, now);
  }
  if (wave == Wave::kProbe) return judge_probe(session, now);
  if (wave == Wave::kFence) return resume(session, now);
  run(session, now);
}

void HeadTable::Impl::open_answered(const HopRef& ref, const StatusOr<wire::OpenReply>& reply,
                                    TimePoint now) {
  HeadSession* session = find(ref);
  if (!session || ref.wave != session->wave_number || session->phase != Phase::kOpening) return;
  HopState& hop = session->hops[ref.index];
  if (!hop.pending) return;
  const SessionId id = ref.session;
  if (!reply.ok()) {
    attempt_failed(*session, ref.index, reply.status(), now);
  } else {
    hop.pending = false;
    switch (reply->code) {
      case wire::OpenCode::kOpened:
        hop.opened = true;
        hop.state.cursor = reply->cursor;
        hop.state.kept_from = reply->kept_from;
        break;
      case wire::OpenCode::kNoRoom:
        hop.refused = true;
        lose(*session, ref.index, error(StatusCode::kResourceExhausted, "{}", reply->message), now);
        break;
      case wire::OpenCode::kShardNotHeld:
      case wire::OpenCode::kDraining:
        hop.refused = true;
        lose(*session, ref.index, error(StatusCode::kUnavailable, "{}", reply->message), now);
        break;
      case wire::OpenCode::kStaleGeneration:
      case wire::OpenCode::kClosed:
      case wire::OpenCode::kBadRequest:
        fail(*session, error(StatusCode::kInternal, "a hop refuses the session: {}", reply->message), now);
        return;
    }
  }
  if (find(id) != session) return;
  if (session->phase != Phase::kClosing) wave_step(*session, now);
  if (find(id) == session) reschedule(*session);
}

void HeadTable::Impl::cursor_answered(const HopRef& ref, const StatusOr<wire::CursorEntry>& reply,
                                      TimePoint now) {
  HeadSession* session = find(ref);
  if (!session || session->phase != Phase::kRunning) return;
  const SessionId id = ref.session;
  if (ref.index == 0 && reply.ok() && reply->known && reply->cursor.generation == session->generation) {
    session->outbound.credit(reply->cursor);
    pump(*session, now);
  }
  HopState& hop = session->hops[ref.index];
  if (session->wave == Wave::kProbe && ref.wave == session->wave_number && hop.pending) {
    if (reply.ok()) {
      hop.pending = false;
      if (!reply->known || reply->cursor.generation != session->generation) {
        fence(*session, "a hop does not know the session any more", now);
        if (find(id) == session) reschedule(*session);
        return;
      }
      // A cache that waits for its turn on the device gets it; yet not even that is believed for ever.
      const bool waits = reply->waits_for_room && now < session->step_deadline + options_.replacement_wait;
      if (waits || hop.state.cursor != reply->cursor || hop.state.computed != reply->computed)
        session->stalled_probes = 0;
      hop.state = *reply;
    } else {
      attempt_failed(*session, ref.index, reply.status(), now);
    }
    if (find(id) != session) return;
    if (session->phase != Phase::kClosing) wave_step(*session, now);
  }
  if (find(id) == session) reschedule(*session);
}

/// All hops answered. One that advances is busy, not dead; when none has moved for several questions, the
/// first that holds work is lost. When none holds work, what is missing is lost on the way: re-opening sends
/// it again.
void HeadTable::Impl::judge_probe(HeadSession& session, TimePoint now) {
  if (++session.stalled_probes <= options_.stalled_probes) {
    session.next_probe = now + options_.probe_interval;
    return;
  }
  Position available = session.awaited();
  for (std::size_t i = 0; i < session.hops.size(); ++i) {
    const Position computed = session.hops[i].state.computed;
    if (computed < available && i > 0) {
      lose(session, i, error(StatusCode::kUnavailable, "it makes no progress"), now);
      if (session.phase != Phase::kClosing) want_routes(session, now);
      return;
    }
    available = std::min(available, computed);
  }
  fence(session, "no hop makes progress and none holds work", now);
}

}  // namespace mesh::head
