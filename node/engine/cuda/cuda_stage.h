#pragma once

#include <memory>

#include "node/engine/device/stage_forward.h"

namespace mesh::engine::cuda {

/// What the fused path may use; less than the GPU can is for comparisons.
struct StageOptions {
  bool graphs = true;
  bool tensor_cores = true;  ///< own kernels on tensor cores (compute capability 8.0)
  bool overlap = true;       ///< launches that begin before the one ahead ends (9.0)
  bool warpgroups = true;    ///< own kernels on warpgroup products (9.0 alone)
};

/// The fused path on GPU `device`; its stream is its own.
std::unique_ptr<StageForward> make_cuda_stage(int device, const StageOptions& options);

/// Device memory that it takes for a model.
std::uint64_t cuda_stage_bytes(const StageShape& shape);

}  // namespace mesh::engine::cuda
