#pragma once

#include "node/engine/cuda/kernels/kernels.h"

namespace mesh::engine::cuda {

inline constexpr int kGatedRows = 128;  ///< up to them reading the matrix takes longer than multiplying

/// y [rows, inner] bfloat16 ← silu(gate) · up of W·x + bias on warpgroup products (compute capability 9.0
/// alone). Addresses multiples of 16.
struct GatedLinear {
  const void* weight = nullptr;  ///< [2 · inner, in] bfloat16, gates first
  const float* bias = nullptr;   ///< [2 · inner] or null
  int inner = 0, in = 0;         ///< multiples of 8
  const void* x = nullptr;       ///< [rows, in] bfloat16
  int rows = 0;
  void* y = nullptr;
};

bool has_gated_linear(int major, int minor);
cudaError_t gated_linear(const Launch& launch, const GatedLinear& linear);

}  // namespace mesh::engine::cuda
