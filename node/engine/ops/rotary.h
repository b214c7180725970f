#pragma once

#include "node/engine/ops/backend.h"

namespace mesh::ops {

/// Rotary position embedding in place, rotate_half order: for d < R, with R = cos.cols and a = x[d], b = x[d
/// + R], x[d] = a·cos[d] − b·sin[d] and x[d + R] = b·cos[d] + a·sin[d], in each of the `heads` runs of x.cols
/// / heads values; dimensions from 2R on stay as they are. x [T, heads · head_dim]; cos, sin [T, R], 2R ≤
/// head_dim: one row per token, so positions, scaling and several axes are the caller's business.
void rotary(CpuBackend& backend, Matrix x, std::int64_t heads, ConstMatrix cos, ConstMatrix sin);

}  // namespace mesh::ops
