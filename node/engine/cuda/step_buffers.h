#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "node/engine/cuda/kernels/step_ends.h"
#include "node/engine/cuda/tensors.h"
#include "node/engine/device/stage_forward.h"

namespace mesh::engine::cuda {

/// Rows whose tables a kernel reads from the host; more come in one copy.
inline constexpr int kReadRows = 64;
/// rows · KV heads · head groups · splits of row_attention never exceed this, unless splits is 1.
inline constexpr int kRowBlocks = 1024;
inline constexpr int kTileSplits = 4, kTileSplitRows = 256;

/// What a step reads and writes, at addresses that stay as long as the model's shape does: graphs refer to
/// them.
class StepBuffers {
 public:
  explicit StepBuffers(const StageShape& shape);
  StepBuffers(const StepBuffers&) = delete;

  static std::uint64_t bytes_for(const StageShape& shape);
  /// Values of the largest matrix of a layer, if matrices are quantised.
  static std::int64_t values_for(const StageShape& shape);
  bool serves(const StageShape& shape) const;

  /// `input` says all but where the tables lie: on the host in `host`. What is enqueued depends on `input`
  /// alone.
  void begin(const Launch& launch, const HostTables& host, StepInput input);
  /// Brings host.sampled[first, first + count) to the place where the head reads.
  void send_sampled(const HostTables& host, std::size_t first, std::size_t count, cudaStream_t stream);

  StepTables tables() const;

  float *x, *delta, *qkv, *logits, *cos, *sin;
  void *normed, *q, *attended, *wide, *gated, *best_scratch;
  void* narrowed[2];  ///< hidden states in bfloat16, of forwards in turn
  int* finite;
  Best* best;
  SplitScratch scratch;

 private:
  StageShape shape_;
  at::Tensor memory_;
  HostTables* device_ = nullptr;
};

}  // namespace mesh::engine::cuda
