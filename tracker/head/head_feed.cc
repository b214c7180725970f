#include <algorithm>

#include "tracker/head/head_impl.h"

namespace mesh::head {

using wire::Lane;

/// Every hop is open in this generation: ids go to hop 0, and the step's time begins.
void HeadTable::Impl::run(HeadSession& session, TimePoint now) {
  session.phase = Phase::kRunning;
  session.stalled_probes = 0;
  session.next_probe.reset();
  session.step_started.reset();
  session.step_deadline = now + options_.first_step_deadline;
  pump(session, now);
}

/// Ids [from, awaited()) in chunks; the tail samples after the last.
void HeadTable::Impl::feed_from(HeadSession& session, Position from) {
  const Position end = session.awaited();
  for (Position at = from; at < end;) {
    const Position to = std::min<Position>(end, at + session.request.chunk);
    wire::Segment segment;
    segment.session = session.id();
    segment.identity = session.request.identity;
    segment.start = at;
    segment.rows = to - at;
    segment.lane = to - at > 1 ? Lane::kBulk : Lane::kDecode;
    segment.sample = to == end;
    segment.ids.assign(session.ids.begin() + at, session.ids.begin() + to);
    session.outbound.push(segment, std::nullopt);
    at = to;
  }
}

void HeadTable::Impl::pump(HeadSession& session, TimePoint now) {
  if (session.phase != Phase::kRunning) return;
  for (const Lane lane : {Lane::kBulk, Lane::kDecode}) {
    while (const pipeline::Outbound::Item* item = session.outbound.next_to_send(lane)) {
      wire::Segment segment = item->segment;
      segment.generation = session.generation;
      segment.range = session.hops[0].address.range;
      actions_.push_back(SendIds{{session.id(), session.generation, 0, 0}, std::move(segment)});
    }
  }
  if (!session.outbound.blocked()) {
    session.credit_at.reset();
  } else if (!session.credit_at) {
    session.credit_at = now + options_.credit_interval;
  }
}

void HeadTable::Impl::ids_answered(const HopRef& ref, const wire::SegmentAnswer& answer, TimePoint now) {
  HeadSession* session = find(ref);
  if (!session || session->phase != Phase::kRunning) return;
  if (answer.code == wire::AnswerCode::kAccepted) {
    session->outbound.accepted(answer.seq);
  } else {
    session->outbound.put_back(answer.seq);
  }
  if (answer.cursor.generation == session->generation) session->outbound.credit(answer.cursor);
  switch (answer.code) {
    case wire::AnswerCode::kAccepted:
      pump(*session, now);
      break;
    case wire::AnswerCode::kWindow:
      if (!session->credit_at) session->credit_at = now + options_.credit_interval;
      break;
    case wire::AnswerCode::kBadSegment:
      fail(*session, error(StatusCode::kInternal, "the tracker's own layers refuse the prompt's ids"), now);
      return;
    default:
      fence(*session, "the tracker's own layers do not know the session", now);
      break;
  }
  if (HeadSession* still = find(ref.session)) reschedule(*still);
}

Duration HeadTable::Impl::step_allowance(const HeadSession& session) const {
  const auto measured = decode_time_.find(session.request.identity);
  if (measured == decode_time_.end()) return options_.first_step_deadline;
  const auto scaled = std::chrono::duration_cast<Duration>(options_.step_deadline_factor * measured->second);
  return std::clamp(scaled, options_.min_step_deadline, options_.first_step_deadline);
}

wire::TokenAnswer HeadTable::Impl::token(const wire::TokenMessage& message, TimePoint now) {
  using wire::TokenCode;
  const auto answer = [&](TokenCode code) {
    return wire::TokenAnswer{message.session, message.position, code};
  };
  HeadSession* found = find(message.session);
  if (!found || found->phase == Phase::kClosing) return answer(TokenCode::kUnknownSession);
  HeadSession& session = *found;
  if (message.generation < session.generation) {
    ++counts_.stale_tokens;
    return answer(TokenCode::kStaleGeneration);
  }
  if (message.generation > session.generation) return answer(TokenCode::kNotAwaited);
  if (message.position < session.awaited()) {
    ++counts_.repeated_tokens;
    return answer(TokenCode::kTaken);
  }
  const bool open =
      session.phase == Phase::kRunning || (session.phase == Phase::kOpening && session.wave == Wave::kResume);
  if (message.position > session.awaited() || !open) return answer(TokenCode::kNotAwaited);
  if (session.step_started) {
    const Duration took = now - *session.step_started;
    auto [average, fresh] = decode_time_.try_emplace(session.request.identity, took);
    if (!fresh) average->second += (took - average->second) / 8;
    session.step_started.reset();
  }
  const Position start = session.awaited();
  session.ids.push_back(message.token);
  const auto& eos = session.request.eos_ids;
  const bool is_eos = std::find(eos.begin(), eos.end(), message.token) != eos.end();
  actions_.push_back(TokenReady{session.id(), message.position, message.token, message.logprob, is_eos});
  const std::size_t made = session.ids.size() - session.request.prompt.size();
  if (is_eos || made >= session.request.max_tokens) {
    finish(session, is_eos ? FinishReason::kStop : FinishReason::kLength, absl::OkStatus(), now);
    return answer(TokenCode::kTaken);
  }
  feed_from(session, start);
  if (session.phase == Phase::kRunning) {
    if (session.wave == Wave::kProbe) session.wave = Wave::kNone;
    session.stalled_probes = 0;
    session.next_probe.reset();
    session.step_started = now;
    session.step_deadline = now + step_allowance(session);
    pump(session, now);
  }
  reschedule(session);
  return answer(TokenCode::kTaken);
}

}  // namespace mesh::head
