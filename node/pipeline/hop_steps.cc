#include <algorithm>

#include "common/base/check.h"
#include "node/pipeline/hop_impl.h"

namespace mesh::pipeline {
namespace {

/// What it takes from choosing a step until the device has it, with a thread switch or two.
constexpr Duration kAhead = std::chrono::microseconds(500);

std::size_t index_of(wire::Lane lane) {
  return static_cast<std::size_t>(lane);
}

}  // namespace

/// Puts the session where its front segment belongs, keeping the place it had while that lasts.
void HopTable::Impl::update_waiting(HopSession& session) {
  const ArrivedSegment* front = session.running ? nullptr : session.inbound.front();
  if (front && !room_.may_run(session.cache)) {
    room_.wait(session.cache);
    front = nullptr;
  } else {
    room_.stop_waiting(session.cache);
  }
  if (!front) {
    if (session.waiting_order) {
      for (auto& lane : waiting_) lane.erase(*session.waiting_order);
      session.waiting_order.reset();
    }
    return;
  }
  auto& lane = waiting_[index_of(front->segment.lane)];
  if (session.waiting_order && lane.contains(*session.waiting_order)) return;
  if (session.waiting_order) waiting_[1 - index_of(front->segment.lane)].erase(*session.waiting_order);
  session.waiting_order = ++last_id_;
  lane.emplace(*session.waiting_order, session.key());
}

std::vector<wire::HopKey> HopTable::Impl::choose_segments(wire::Lane lane) const {
  const std::uint32_t limit = lane == wire::Lane::kDecode ? options_.decode_rows : options_.prefill_rows;
  std::vector<wire::HopKey> chosen;
  const HopSession* first = nullptr;
  std::uint32_t rows = 0;
  for (const auto& [order, key] : waiting_[index_of(lane)]) {
    const HopSession& session = sessions_.at(key);
    const std::uint32_t more = session.inbound.front()->segment.rows;
    if (!first) {
      first = &session;
    } else if (session.request.identity != first->request.identity ||
               session.request.range != first->request.range ||
               session.request.takes_ids != first->request.takes_ids || rows + more > limit) {
      continue;
    }
    chosen.push_back(key);
    rows += more;
    if (rows >= limit) break;
  }
  return chosen;
}

void HopTable::Impl::expire_front(HopSession& session, TimePoint now) {
  report(session, wire::ReportCode::kDeadline, "the segment's time was up before it could run", now);
  session.inbound.mark_broken();
  update_waiting(session);
}

std::optional<StepWork> HopTable::Impl::next_step(TimePoint now) {
  let_in(now);
  const wire::Lane other = last_lane_ == wire::Lane::kDecode ? wire::Lane::kBulk : wire::Lane::kDecode;
  while (!waiting_[0].empty() || !waiting_[1].empty()) {
    const wire::Lane lane = waiting_[index_of(other)].empty() ? last_lane_ : other;
    StepWork work;
    work.id = ++last_id_;
    work.lane = lane;
    for (const wire::HopKey& key : choose_segments(lane)) {
      HopSession& session = sessions_.at(key);
      const auto deadline = session.inbound.front()->deadline;
      if (deadline && *deadline <= now) {
        expire_front(session, now);
        continue;
      }
      wire::Segment input = session.inbound.take().segment;
      trim(session, input.start);
      session.next = input.end();
      room_.used(session.cache, session.next, host_bytes(session), now);
      work.identity = session.request.identity;
      work.range = session.request.range;
      work.takes_ids = session.request.takes_ids;
      work.ends_model = session.is_tail();
      work.rows += input.rows;
      StepSegment step{key,
                       session.cache,
                       session.request.max_tokens,
                       input.start,
                       input.rows,
                       std::move(input.hidden),
                       session.request.takes_ids ? input.ids : std::vector<TokenId>{},
                       input.positions,
                       input.spans,
                       input.sides,
                       session.is_tail() && input.sample && input.end() > session.tail_emit_from,
                       session.is_tail() ? session.request.tail->sampling : wire::Sampling{}};
      input.sample = session.is_tail() ? step.sample : input.sample;
      if (session.request.takes_ids) input.ids.clear();
      session.running = RunningRows{std::move(input), deadline};
      RunningStep& running = steps_[work.id];
      running.members.emplace_back(key, session.cache);
      running.from = now;
      running.has_layers = !work.range.empty();
      running.lane = lane;
      if (lane == wire::Lane::kBulk) running.prefill_rows += session.running->input.rows;
      work.segments.push_back(std::move(step));
      update_waiting(session);
    }
    if (work.segments.empty()) continue;  // all had expired
    last_lane_ = lane;
    return work;
  }
  return std::nullopt;
}

std::optional<TimePoint> HopTable::Impl::ahead_from() const {
  const std::size_t waiting = waiting_[0].size() + waiting_[1].size();
  if (steps_.empty() || waiting == 0) return std::nullopt;
  const RunningStep& last = steps_.rbegin()->second;
  std::size_t here = waiting;
  for (const auto& [id, step] : steps_) here += step.members.size();
  if (here >= sessions_.size()) return last.from;
  const Duration took = step_took_[index_of(last.lane)];
  if (took == Duration::zero()) return std::nullopt;
  return last.from + took - std::min(took / 4, kAhead);
}

void HopTable::Impl::trim(HopSession& session, Position start) {
  if (start >= session.next) return;
  ++counts_.trims;
  const std::uint64_t before = session.kept.bytes();
  session.kept.truncate(start);
  kept_ -= before - session.kept.bytes();
  session.outbound.trim(start);
  if (session.token && session.token->message.position > start) {
    session.token.reset();
    tokens_due_.clear(session.key());
  }
}

void HopTable::Impl::step_done(StepOutput output, TimePoint now) {
  const auto at = steps_.find(output.id);
  MESH_CHECK(at != steps_.end() && at->second.members.size() == output.segments.size());
  const RunningStep step = std::move(at->second);
  for (auto behind = steps_.erase(at); behind != steps_.end(); ++behind) behind->second.from = now;
  if (step.has_layers) {
    const Duration took = now - step.from;
    step_took_[index_of(step.lane)] = took;
    room_.note_prefill(step.prefill_rows, took);
  }
  for (std::size_t i = 0; i < step.members.size(); ++i) {
    const auto& [key, cache] = step.members[i];
    HopSession* session = find(key);
    if (!session || session->cache != cache) continue;  // it has ended meanwhile
    MESH_CHECK(session->running);
    finish_rows(*session, std::move(output.segments[i]), now);
  }
  enforce_kept_budget(now);
}

void HopTable::Impl::finish_rows(HopSession& session, SegmentOutput output, TimePoint now) {
  const RunningRows done = std::move(*session.running);
  session.running.reset();
  const std::size_t expected = std::size_t{2} * done.input.rows * session.shard.hidden_size;
  Status status = output.status;
  if (status.ok() && session.is_tail() && done.input.sample && !output.token) {
    status = error(StatusCode::kInternal, "the engine gave no token");
  } else if (status.ok() && !session.is_tail() && (!output.hidden || output.hidden->size() != expected)) {
    status = error(StatusCode::kInternal, "the engine gave no hidden states of the expected size");
  }
  if (!status.ok()) {
    session.next = done.input.start;
    if (output.cache_lost) {
      trim(session, 0);
      session.next = session.blocks_seen = 0;
    }
    session.inbound.mark_broken();
    report(session, wire::ReportCode::kStepFailed, std::string(message_of(status)), now);
    update_waiting(session);
    return;
  }
  keep_prefix(session, done.input);
  if (session.is_tail()) {
    if (output.token) {
      session.token = LastToken{{session.request.session, session.request.generation, done.input.end(),
                                 output.token->token, output.token->logprob}};
      if (!session.outbound.held() && done.input.end() > session.tail_emit_from) token_due(session, now);
    }
  } else {
    wire::Segment result = done.input;
    result.session = session.request.session;
    result.identity = session.request.identity;
    result.hidden_size = session.shard.hidden_size;
    result.hidden = std::move(output.hidden);
    result.deadline_ms = 0;
    session.outbound.push(result, done.deadline);
    keep(session, std::move(result));
    update_links(session, now);
  }
  update_waiting(session);
}

void HopTable::Impl::keep(HopSession& session, wire::Segment output) {
  const std::uint64_t before = session.kept.bytes();
  session.kept.append(std::move(output));
  kept_ += session.kept.bytes() - before;
}

/// Over budget, the longest kept outputs go first, but never rows that the next hop has not accepted.
void HopTable::Impl::enforce_kept_budget(TimePoint now) {
  if (kept_ <= options_.kept_bytes) return;
  const std::uint64_t target = options_.kept_bytes / 10 * 9;
  std::vector<std::pair<std::uint64_t, wire::HopKey>> largest;
  for (const auto& [key, session] : sessions_) largest.emplace_back(session.kept.bytes(), key);
  std::sort(largest.rbegin(), largest.rend());
  for (const auto& [bytes, key] : largest) {
    if (kept_ <= target || bytes == 0) return;
    HopSession& session = sessions_.at(key);
    const auto needed = session.outbound.first_unaccepted();
    if (!needed) continue;  // fenced: kept_from was promised
    session.kept.drop_before(*needed);
    kept_ -= bytes - session.kept.bytes();
    if (session.kept.bytes() != bytes) {
      report(session, wire::ReportCode::kOutputsDropped, "the budget for kept outputs is used up", now);
    }
  }
}

}  // namespace mesh::pipeline
