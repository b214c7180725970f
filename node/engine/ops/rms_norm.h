#pragma once

#include "node/engine/ops/backend.h"

namespace mesh::ops {

/// out[r] = x[r] · (mean(x[r]²) + eps)^−½ · (weight_offset + weight); x, out [T, H], may be the same memory;
/// weight [H]. weight_offset is 1 for families that store weight − 1.
void rms_norm(CpuBackend& backend, ConstMatrix x, const float* weight, float eps, Matrix out,
              float weight_offset = 0);

/// The same over each of the `heads` runs of cols / heads values of a row, in place, one weight [cols /
/// heads] for all (Qwen3's q_norm and k_norm).
void rms_norm_heads(CpuBackend& backend, Matrix x, std::int64_t heads, const float* weight, float eps,
                    float weight_offset = 0);

}  // namespace mesh::ops
