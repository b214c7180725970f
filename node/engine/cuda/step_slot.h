#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

#include "node/engine/cuda/step_buffers.h"
#include "node/engine/cuda/step_clock.h"

namespace mesh::engine::cuda {

/// Page-locked host memory that grows, by doubling up to `most`; what it held is then gone.
class PinnedBytes {
 public:
  PinnedBytes() = default;
  ~PinnedBytes();
  PinnedBytes(const PinnedBytes&) = delete;
  std::byte* at_least(std::uint64_t bytes, std::uint64_t most = ~std::uint64_t{0});

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// The host's side of a forward: what is sent to the device and what comes back, in page-locked memory, and
/// the event at its end. The host fills one slot while the device works on another one's forward.
class StepSlot {
 public:
  StepSlot();
  ~StepSlot();
  StepSlot(const StepSlot&) = delete;

  HostTables& tables() { return *tables_; }

  // Enqueue; check() throws.
  /// Hidden states where begin_step() finds them: tables().hidden says where each row lies.
  void take_hidden(const StageBatch& batch, std::int64_t hidden);
  /// The rows of x [rows, H] that are wanted; in `narrowed` they are left in bfloat16.
  void fetch_hidden(const Launch& launch, const StageBatch& batch, std::int64_t hidden, const float* x,
                    void* narrowed);
  /// sampled[first, first + count) as the head has left them, with the logits that are wanted: of kHeadBatch
  /// rows at most without waiting, then those that the host has not taken yet are waited for.
  void fetch_head(const StageBatch& batch, std::size_t first, std::size_t count, const StepBuffers& from,
                  std::int64_t vocab, cudaStream_t stream);
  /// What the layers and the head's first `sampled` rows gave; no later launch of the forward changes it.
  void fetch_results(const Launch& launch, int rows, int sampled, const StepBuffers& from);
  /// The forward, of `rows` rows, is under way.
  void close(StageBatch& batch, std::int64_t rows, const StepKind& kind, cudaStream_t stream);

  /// Waits for the forward under way, if it is `batch`'s (null: whosever), and fills its results. Any thread.
  void finish(const StageBatch* batch, StepClock& clock);

 private:
  void deliver(StageBatch& batch);
  /// The logits of sampled[logits_from_, end), which have come, to where they are wanted.
  void give_logits(const StageBatch& batch, std::size_t end);

  HostTables* tables_ = nullptr;
  HostResults* results_ = nullptr;
  PinnedBytes sent_, fetched_;
  PinnedBytes logits_;           ///< of kHeadBatch rows at most
  std::size_t logits_from_ = 0;  ///< the first of `sampled` whose logits were not given yet
  std::int64_t rows_ = 0, hidden_ = 0, vocab_ = 0;
  cudaEvent_t ended_ = nullptr;
  StepKind kind_{};
  TimePoint begun_;
  std::mutex mutex_;
  StageBatch* batch_ = nullptr;  ///< of the forward under way
};

}  // namespace mesh::engine::cuda
