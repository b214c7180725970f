#include "node/engine/exec/local_step.h"

#include <algorithm>
#include <utility>

#include "node/engine/exec/segment_rows.h"
#include "node/engine/sampling/sampler.h"

namespace mesh::engine {

bool needs_logits(const Segment& segment) {
  return segment.sampling.temperature != 0 || segment.top > 0 || segment.want_logits;
}

LocalStep::LocalStep(DeviceOps& ops, CacheTable& caches, std::shared_ptr<const LoadedShard> shard,
                     std::vector<Segment> segments)
    : ops_(ops),
      caches_(caches),
      shard_(std::move(shard)),
      segments_(std::move(segments)),
      results_(segments_.size()) {
  live_.reserve(segments_.size());
}

StatusOr<std::vector<SegmentResult>> LocalStep::finish() {
  end_forward();
  const std::lock_guard lock(mutex_);
  finished_ = true;
  if (lent_ > 0) return results_;
  return std::move(results_);
}

bool LocalStep::ended() const {
  const std::lock_guard lock(mutex_);
  return staged_ == nullptr;
}

void LocalStep::begun(std::unique_ptr<StagedForward> forward) {
  const std::lock_guard lock(mutex_);
  staged_ = std::move(forward);
}

void LocalStep::end_forward() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return !ending_; });
  if (staged_ == nullptr) return;
  ending_ = true;
  StageBatch& batch = staged_->batch;
  lock.unlock();
  const Status status = ops_.stage()->finish(batch);
  lock.lock();
  ending_ = false;
  ended_.notify_all();
  if (status.ok()) take_results();
  settle(staged_->live, status);
  staged_.reset();
}

Status LocalStep::lend() {
  const std::lock_guard lock(mutex_);
  if (finished_) {
    return error(StatusCode::kFailedPrecondition,
                 "the step before was finished already: begin with what its finish() gave");
  }
  ++lent_;
  return absl::OkStatus();
}

void LocalStep::take_back() {
  const std::lock_guard lock(mutex_);
  --lent_;
}

Status LocalStep::status(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  return results_[index].status;
}

void LocalStep::settle(std::span<LiveSegment> live, const Status& status) {
  for (LiveSegment& one : live) {
    SegmentResult& result = *one.result;
    if (!status.ok()) result.status = status;
    if (!result.status.ok()) result = {.status = result.status, .hidden = {}, .tokens = {}, .logits = {}};
    const Segment& segment = *one.segment;
    caches_.give_back(*one.cache, result.status.ok() ? segment.start + segment.rows : segment.start);
    one.cache.reset();
  }
}

const void* LocalStep::device_rows(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  if (staged_ == nullptr) return nullptr;
  const auto found =
      std::ranges::find(staged_->live, &results_[index], [](const LiveSegment& one) { return one.result; });
  if (found == staged_->live.end()) return nullptr;
  const std::byte* rows = ops_.stage()->hidden_rows(staged_->batch);
  return rows == nullptr ? nullptr : rows + found->first_row * std::int64_t{shard_->decoder->hidden} * 2;
}

void LocalStep::take_results() {
  const StageBatch& batch = staged_->batch;
  for (const LiveSegment& one : staged_->live) {
    const auto rows =
        std::span(batch.finite).subspan(static_cast<std::size_t>(one.first_row), one.segment->rows);
    if (std::ranges::count(rows, 0) != 0) one.result->status = not_finite(*one.segment, "hidden states");
  }
  for (std::size_t i = 0; i < staged_->sampled.size(); ++i) {
    const auto& [live, position, logits] = staged_->sampled[i];
    const Segment& segment = *live->segment;
    SegmentResult& result = *live->result;
    const StageSampled& found = batch.sampled[i];
    if (!result.status.ok()) continue;
    if (!found.finite) {
      result.status = not_finite(segment, "logits");
    } else if (!needs_logits(segment)) {
      result.tokens.push_back({.id = found.id, .logprob = found.logprob, .top = {}});
    } else {
      const std::vector<float>& row = staged_->logits[logits];
      result.tokens.push_back(sample(row, segment.sampling, position, segment.top));
      if (segment.want_logits) result.logits.insert(result.logits.end(), row.begin(), row.end());
    }
  }
}

}  // namespace mesh::engine
