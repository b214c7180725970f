#include "node/engine/cuda/step_slot.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "node/engine/cuda/cuda_linear.h"

namespace mesh::engine::cuda {
namespace {

std::size_t row_bytes(std::int64_t hidden, bool bfloat16) {
  return static_cast<std::size_t>(hidden) * (bfloat16 ? 2 : 4);
}
std::size_t in_bytes(const StageSegment& segment, std::int64_t hidden) {
  const bool crosses = segment.hidden != nullptr && !segment.hidden_on_device;
  return crosses ? static_cast<std::size_t>(segment.rows) * row_bytes(hidden, segment.hidden_bfloat16) : 0;
}
std::size_t out_bytes(const StageSegment& segment, std::int64_t hidden) {
  const bool crosses = segment.out != nullptr;
  return crosses ? static_cast<std::size_t>(segment.rows) * row_bytes(hidden, segment.out_bfloat16) : 0;
}
/// Of all segments, which lie in page-locked memory without gaps.
std::size_t bytes_of(const StageBatch& batch, std::int64_t hidden,
                     std::size_t (*of)(const StageSegment&, std::int64_t)) {
  std::size_t bytes = 0;
  for (const StageSegment& segment : batch.segments) bytes += of(segment, hidden);
  return bytes;
}

}  // namespace

PinnedBytes::~PinnedBytes() {
  cudaFreeHost(data_);
}

std::byte* PinnedBytes::at_least(std::uint64_t bytes, std::uint64_t most) {
  if (bytes <= bytes_) return data_;
  cudaFreeHost(std::exchange(data_, nullptr));
  bytes_ = 0;
  const std::uint64_t size = std::max(bytes, std::min(std::bit_ceil(bytes), most));
  check(cudaMallocHost(reinterpret_cast<void**>(&data_), size));
  bytes_ = size;
  return data_;
}

StepSlot::StepSlot() {
  check(cudaMallocHost(reinterpret_cast<void**>(&tables_), sizeof(HostTables)));
  check(cudaMallocHost(reinterpret_cast<void**>(&results_), sizeof(HostResults)));
  check(cudaEventCreateWithFlags(&ended_, cudaEventDisableTiming | cudaEventBlockingSync));
}

StepSlot::~StepSlot() {
  cudaEventDestroy(ended_);
  cudaFreeHost(tables_);
  cudaFreeHost(results_);
}

void StepSlot::take_hidden(const StageBatch& batch, std::int64_t hidden) {
  std::byte* at = sent_.at_least(bytes_of(batch, hidden, in_bytes));
  const std::byte** row = tables_->hidden;
  for (const StageSegment& segment : batch.segments) {
    const auto* from = static_cast<const std::byte*>(segment.hidden);
    if (const std::size_t bytes = in_bytes(segment, hidden); bytes > 0) {
      std::copy_n(from, bytes, at);
      from = at;
      at += bytes;
    }
    for (std::int64_t i = 0; i < segment.rows; ++i, ++row) {
      *row = from;
      if (from != nullptr) from += row_bytes(hidden, segment.hidden_bfloat16);
    }
  }
}

void StepSlot::fetch_hidden(const Launch& launch, const StageBatch& batch, std::int64_t hidden,
                            const float* x, void* narrowed) {
  hidden_ = hidden;
  std::byte* at = fetched_.at_least(bytes_of(batch, hidden, out_bytes));
  const auto& segments = batch.segments;
  std::int64_t row = 0;
  for (auto first = segments.begin(); first != segments.end();) {
    // Neighbours that want the same go together.
    const auto like_first = [&](const StageSegment& one) {
      return (one.out != nullptr) == (first->out != nullptr) && one.out_bfloat16 == first->out_bfloat16;
    };
    const auto last = std::find_if_not(first, segments.end(), like_first);
    std::int64_t rows = 0;
    for (auto one = first; one != last; ++one) rows += one->rows;
    const std::size_t bytes =
        first->out == nullptr ? 0 : static_cast<std::size_t>(rows) * row_bytes(hidden, first->out_bfloat16);
    if (bytes > 0 && first->out_bfloat16) {
      void* const to =
          static_cast<std::byte*>(narrowed) + static_cast<std::size_t>(row) * row_bytes(hidden, true);
      check(narrow_values(launch, x + row * hidden, to, at, rows * hidden));
    } else if (bytes > 0) {
      check(cudaMemcpyAsync(at, x + row * hidden, bytes, cudaMemcpyDeviceToHost, launch.stream));
    }
    at += bytes, row += rows, first = last;
  }
}

void StepSlot::fetch_head(const StageBatch& batch, std::size_t first, std::size_t count,
                          const StepBuffers& from, std::int64_t vocab, cudaStream_t stream) {
  vocab_ = vocab;
  if (first > 0) {  // else fetch_results() brings it
    check(cudaMemcpyAsync(results_->best + first, from.best, count * sizeof(Best), cudaMemcpyDeviceToHost,
                          stream));
  }
  if (first == 0) logits_from_ = 0;
  const auto wanted = [&](std::size_t begin, std::size_t end) {
    const auto some = std::span(batch.sampled).subspan(begin, end - begin);
    return static_cast<std::size_t>(
        std::ranges::count_if(some, [](const StageSampled& one) { return one.logits != nullptr; }));
  };
  if (wanted(first, first + count) == 0) return;
  constexpr std::size_t kMost = kHeadBatch;
  if (wanted(logits_from_, first + count) > kMost) {
    check(cudaEventRecord(ended_, stream));
    check(cudaEventSynchronize(ended_));
    give_logits(batch, first);
  }
  const auto row_bytes = static_cast<std::size_t>(vocab) * sizeof(float);
  const std::size_t rows = std::min(wanted(0, batch.sampled.size()), kMost);
  std::byte* pinned =
      logits_.at_least(rows * row_bytes, kMost * row_bytes) + wanted(logits_from_, first) * row_bytes;
  for (std::size_t i = 0; i < count; ++i) {
    if (batch.sampled[first + i].logits == nullptr) continue;
    check(cudaMemcpyAsync(pinned, from.logits + i * static_cast<std::size_t>(vocab), row_bytes,
                          cudaMemcpyDeviceToHost, stream));
    pinned += row_bytes;
  }
}

void StepSlot::fetch_results(const Launch& launch, int rows, int sampled, const StepBuffers& from) {
  check(end_step(launch, from.finite, rows, from.best, sampled, results_));
}

void StepSlot::close(StageBatch& batch, std::int64_t rows, const StepKind& kind, cudaStream_t stream) {
  check(cudaEventRecord(ended_, stream));
  const std::lock_guard lock(mutex_);
  batch_ = &batch;
  rows_ = rows, kind_ = kind, begun_ = SteadyClock().now();
}

void StepSlot::finish(const StageBatch* batch, StepClock& clock) {
  const std::lock_guard lock(mutex_);
  if (batch_ == nullptr || (batch != nullptr && batch != batch_)) return;
  StageBatch& ended = *std::exchange(batch_, nullptr);
  ended.status = guarded([&] {
    check(clock.wait(ended_, kind_, begun_));
    deliver(ended);
  });
}

void StepSlot::deliver(StageBatch& batch) {
  batch.finite.assign(results_->finite, results_->finite + rows_);
  const std::byte* at = fetched_.at_least(0);
  for (const StageSegment& segment : batch.segments) {
    const std::size_t bytes = out_bytes(segment, hidden_);
    if (bytes > 0) std::copy_n(at, bytes, static_cast<std::byte*>(segment.out));
    at += bytes;
  }
  for (std::size_t i = 0; i < batch.sampled.size(); ++i) {
    StageSampled& one = batch.sampled[i];
    const Best& best = results_->best[i];
    one.finite = best.id >= 0, one.id = best.id, one.logprob = best.logprob;
  }
  give_logits(batch, batch.sampled.size());
}

void StepSlot::give_logits(const StageBatch& batch, std::size_t end) {
  const auto bytes = static_cast<std::size_t>(vocab_) * sizeof(float);
  const std::byte* from = logits_.at_least(0);
  for (; logits_from_ < end; ++logits_from_) {
    const StageSampled& one = batch.sampled[logits_from_];
    if (one.logits == nullptr) continue;
    std::memcpy(one.logits, from, bytes);
    from += bytes;
  }
}

}  // namespace mesh::engine::cuda
