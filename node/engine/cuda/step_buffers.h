#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "node/engine/cuda/kernels/kernels.h"
#include "node/engine/cuda/tensors.h"
#include "node/engine/device/stage_forward.h"

namespace mesh::engine::cuda {

inline constexpr int kStageRows = 1024;     ///< most rows of one forward
inline constexpr int kHeadBatch = 64;       ///< rows that enter the head at a time
inline constexpr int kStageBlocks = 32768;  ///< most KV blocks of one forward's sessions: 4 Mi tokens
inline constexpr int kMostPairs = 64;
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

  /// Tables as the host fills them and send() brings them, from page-locked memory that stays until they are
  /// there.
  struct HostTables {
    float frequencies[kMostPairs];
    Tile tiles[kStageRows];
    int ids[kStageRows], rotary[kStageRows], place[kStageRows], first_block[kStageRows], sampled[kStageRows];
    std::byte* blocks[kStageBlocks];
  };
  cudaError_t send(const HostTables& host, std::size_t block_count, cudaStream_t stream);
  /// Brings sampled[first, first + count) to the place where the head reads.
  cudaError_t send_sampled(const HostTables& host, std::size_t first, std::size_t count, cudaStream_t stream);

  StepTables tables() const;
  const float* frequencies() const;

  /// As `finite` and `best` lie on the device.
  struct HostResults {
    int finite[kStageRows];
    Best best[kStageRows];
  };

  float *x, *delta, *qkv, *logits, *cos, *sin;
  void *normed, *q, *attended, *wide, *gated, *staging, *best_scratch;
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
