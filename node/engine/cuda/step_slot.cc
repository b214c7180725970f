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

/// Whether and how hidden states of a segment cross between host and device.
enum class Way : std::uint8_t { kNone, kNarrow, kWide };

Way way_in(const StageSegment& segment) {
  if (segment.hidden == nullptr || segment.hidden_on_device) return Way::kNone;
  return segment.hidden_bfloat16 ? Way::kNarrow : Way::kWide;
}
Way way_out(const StageSegment& segment) {
  if (segment.out == nullptr) return Way::kNone;
  return segment.out_bfloat16 ? Way::kNarrow : Way::kWide;
}
std::size_t bytes_of(std::int64_t rows, std::int64_t hidden, Way way) {
  return static_cast<std::size_t>(rows * hidden * (way == Way::kNone ? 0 : way == Way::kNarrow ? 2 : 4));
}

/// Rows of neighbouring segments that go the same way, and where they begin in page-locked memory, in which
/// the rows that cross lie without gaps.
struct Run {
  Way way = Way::kNone;
  std::int64_t row = 0, rows = 0;
  std::size_t place = 0;
};

std::vector<Run> runs_of(const StageBatch& batch, std::int64_t hidden, Way (*way_of)(const StageSegment&)) {
  std::vector<Run> runs;
  Run next;
  for (const StageSegment& segment : batch.segments) {
    next.way = way_of(segment), next.rows = segment.rows;
    if (runs.empty() || runs.back().way != next.way) {
      runs.push_back(next);
    } else {
      runs.back().rows += segment.rows;
    }
    next.row += segment.rows;
    next.place += bytes_of(segment.rows, hidden, next.way);
  }
  std::erase_if(runs, [](const Run& run) { return run.way == Way::kNone; });
  return runs;
}
std::size_t bytes_of(const std::vector<Run>& runs, std::int64_t hidden) {
  return runs.empty() ? 0 : runs.back().place + bytes_of(runs.back().rows, hidden, runs.back().way);
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
  check(cudaMallocHost(reinterpret_cast<void**>(&tables_), sizeof(StepBuffers::HostTables)));
  check(cudaMallocHost(reinterpret_cast<void**>(&results_), sizeof(StepBuffers::HostResults)));
  check(cudaEventCreateWithFlags(&ended_, cudaEventDisableTiming | cudaEventBlockingSync));
}

StepSlot::~StepSlot() {
  cudaEventDestroy(ended_);
  cudaFreeHost(tables_);
  cudaFreeHost(results_);
}

void StepSlot::send_hidden(const StageBatch& batch, std::int64_t hidden, void* staging, cudaStream_t stream) {
  const std::vector<Run> runs = runs_of(batch, hidden, way_in);
  const std::size_t pitch = bytes_of(1, hidden, Way::kWide);
  std::byte* to = static_cast<std::byte*>(staging);
  std::byte* const pinned = sent_.at_least(bytes_of(runs, hidden));
  std::byte* at = pinned;
  for (const StageSegment& segment : batch.segments) {
    const auto rows = static_cast<std::size_t>(segment.rows);
    if (segment.hidden_on_device) {
      const std::size_t width = bytes_of(1, hidden, Way::kNarrow);
      check(
          cudaMemcpy2DAsync(to, pitch, segment.hidden, width, width, rows, cudaMemcpyDeviceToDevice, stream));
    }
    to += rows * pitch;
    const std::size_t bytes = bytes_of(segment.rows, hidden, way_in(segment));
    if (bytes > 0) at = std::copy_n(static_cast<const std::byte*>(segment.hidden), bytes, at);
  }
  for (const Run& run : runs) {
    const std::size_t width = bytes_of(1, hidden, run.way);
    check(cudaMemcpy2DAsync(static_cast<std::byte*>(staging) + static_cast<std::size_t>(run.row) * pitch,
                            pitch, pinned + run.place, width, width, static_cast<std::size_t>(run.rows),
                            cudaMemcpyHostToDevice, stream));
  }
}

void StepSlot::fetch_hidden(const Launch& launch, const StageBatch& batch, std::int64_t hidden,
                            const float* x, void* narrowed) {
  hidden_ = hidden;
  const std::vector<Run> runs = runs_of(batch, hidden, way_out);
  std::byte* const pinned = fetched_.at_least(bytes_of(runs, hidden));
  for (const Run& run : runs) {
    const void* from = x + run.row * hidden;
    if (run.way == Way::kNarrow) {
      void* to = static_cast<std::byte*>(narrowed) + bytes_of(run.row, hidden, Way::kNarrow);
      check(narrow_values(launch, x + run.row * hidden, to, run.rows * hidden));
      from = to;
    }
    check(cudaMemcpyAsync(pinned + run.place, from, bytes_of(run.rows, hidden, run.way),
                          cudaMemcpyDeviceToHost, launch.stream));
  }
}

void StepSlot::fetch_head(const StageBatch& batch, std::size_t first, std::size_t count,
                          const StepBuffers& from, std::int64_t vocab, cudaStream_t stream) {
  vocab_ = vocab;
  if (batch.sampled.size() > kHeadBatch) {  // else close() brings it
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

void StepSlot::close(StageBatch& batch, std::int64_t rows, const StepKind& kind, const StepBuffers& from,
                     cudaStream_t stream) {
  const bool with_best = !batch.sampled.empty() && batch.sampled.size() <= kHeadBatch;
  const std::size_t bytes =
      with_best ? offsetof(StepBuffers::HostResults, best) + batch.sampled.size() * sizeof(Best)
                : static_cast<std::size_t>(rows) * sizeof(int);
  check(cudaMemcpyAsync(results_, from.finite, bytes, cudaMemcpyDeviceToHost, stream));
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
    const std::size_t bytes = bytes_of(segment.rows, hidden_, way_out(segment));
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
