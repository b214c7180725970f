#pragma once

#include "node/engine/ops/backend.h"

namespace mesh::ops {

/// out[r] = (x[r] − mean) · (variance + eps)^−½ · weight + bias, the variance over H (not H − 1); x, out [T,
/// H], may be the same memory; weight, bias [H], bias may be null.
void layer_norm(CpuBackend& backend, ConstMatrix x, const float* weight, const float* bias, float eps,
                Matrix out);

}  // namespace mesh::ops
