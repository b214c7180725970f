#pragma once

#include <array>

#include "node/engine/device/device_ops.h"
#include "node/engine/engine.h"
#include "node/engine/models/decoder_spec.h"

namespace mesh::engine {

/// Most rows of one forward; a step with more runs in several.
inline constexpr std::int64_t kForwardRows = 1024;
/// Rows that pass through an MLP, or through lm_head, at a time: bounds their memory.
inline constexpr std::int64_t kMlpRows = 256;
inline constexpr std::int64_t kHeadRows = 16;

enum class Slot : std::uint8_t {
  kHidden,
  kNormed,
  kQkv,
  kAttended,
  kMlpIn,
  kMlpOut,
  kLogits,
  kCos,
  kSin,
  kRows
};

/// Device buffers of the executor that live from step to step. Grows, never shrinks.
class Workspace {
 public:
  /// `faults`: null, or asked before each allocation.
  explicit Workspace(DeviceOps& ops, AllocationFaults* faults = nullptr) : ops_(ops), faults_(faults) {}
  /// A matrix without gaps; its contents are undefined. Valid until the same slot is asked for again.
  StatusOr<Matrix> matrix(Slot slot, std::int64_t rows, std::int64_t cols);

  /// Bytes that steps of this model take at most.
  static std::uint64_t bytes_for(const DecoderSpec& spec);

 private:
  struct Buffer {
    DeviceMemory memory;
    std::uint64_t bytes = 0;
  };
  DeviceOps& ops_;
  AllocationFaults* const faults_;
  std::array<Buffer, static_cast<std::size_t>(Slot::kRows) + 1> buffers_;
};

}  // namespace mesh::engine
