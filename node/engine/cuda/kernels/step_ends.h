#pragma once

#include "node/engine/cuda/kernels/kernels.h"

/// What crosses between host and device at the two ends of a step. Kernels read and write the host's side
/// themselves, which is page-locked: a copy of a few hundred bytes takes as long as a hundredth of a layer's
/// weights, and the kernel that uses them waits for it.
namespace mesh::engine::cuda {

inline constexpr int kStageRows = 1024;     ///< most rows of one forward
inline constexpr int kHeadBatch = 64;       ///< rows that enter the head at a time
inline constexpr int kStageBlocks = 32768;  ///< most KV blocks of one forward's sessions: 4 Mi tokens
inline constexpr int kMostPairs = 64;

inline constexpr int kNarrowRow = -1;  ///< a hidden state in bfloat16
inline constexpr int kWideRow = -2;    ///< a hidden state in float32
inline constexpr int kNoRow = -3;      ///< padding: zeros

/// What StepTables points to, on the device.
struct DeviceTables {
  Tile tiles[kStageRows];
  int place[kStageRows], first_block[kStageRows], sampled[kStageRows];
  std::byte* blocks[kStageBlocks];
};
/// What the host says of a step, in page-locked memory that stays until begin_step() has run.
struct HostTables {
  float frequencies[kMostPairs];
  int ids[kStageRows];  ///< token, or one of kNarrowRow, kWideRow, kNoRow
  int rotary[kStageRows];
  const std::byte*
      hidden[kStageRows];  ///< of hidden states: the row, page-locked or on the device, at 16 bytes
  int block_count;         ///< entries of device.blocks
  DeviceTables device;
};
struct HostResults {
  int finite[kStageRows];
  Best best[kStageRows];
};

struct StepInput {
  const HostTables* host = nullptr;
  HostTables* device = nullptr;
  /// All of host but device.blocks was copied to `device`. Else it is read by the kernel, which brings what
  /// later launches need of it: worth it for few rows.
  bool copied = false;
  int rows = 0, tiles = 0, sampled = 0;  ///< entries that count
  const void* embedding = nullptr;       ///< [V, H] bfloat16, or null
  CodedMatrix coded = {};                ///< with rows: instead of `embedding`
  float* x = nullptr;                    ///< [rows, H], H a multiple of 8
  int hidden = 0;
  float *cos = nullptr,
        *sin = nullptr;      ///< [rows, pairs]: of rotary position · frequency (a float32 product), times
  float rotation_scale = 1;  ///< this
  int pairs = 0;
};
/// Brings the tables to device->device, and makes x and the rotation table of them. Launches that read tables
/// before they wait must not overlap it: the next one is enqueued without `overlap`.
cudaError_t begin_step(const Launch& launch, const StepInput& input);

/// host.finite ← finite [rows], host.best ← best [sampled].
cudaError_t end_step(const Launch& launch, const int* finite, int rows, const Best* best, int sampled,
                     HostResults* host);

/// to and, unless it is null, `host` ← bfloat16(from), `count` values, a multiple of 8.
cudaError_t narrow_values(const Launch& launch, const float* from, void* to, void* host, std::int64_t count);

}  // namespace mesh::engine::cuda
