#pragma once

#include "node/engine/ops/backend.h"

namespace mesh::ops {

/// out[t, i] = silu(x[t, i]) · x[t, I + i], silu(a) = a / (1 + e^−a); x [T, 2·I] (gate, then up), out [T, I].
void silu_mul(CpuBackend& backend, ConstMatrix x, Matrix out);

/// x = ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) in place (gelu_new, gelu_pytorch_tanh).
void gelu_tanh(CpuBackend& backend, Matrix x);

/// x = ½·x·(1 + erf(x / √2)) in place.
void gelu_exact(CpuBackend& backend, Matrix x);

}  // namespace mesh::ops
