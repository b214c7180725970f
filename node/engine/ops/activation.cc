#include "node/engine/ops/activation.h"

#include <cmath>

#include "common/base/check.h"
#include "node/engine/ops/kernels.h"
#include "node/engine/ops/row_ops.h"

namespace mesh::ops {

void silu_mul(CpuBackend& backend, ConstMatrix x, Matrix out) {
  MESH_CHECK(x.rows == out.rows && x.cols == 2 * out.cols);
  for_each_row(backend, x.rows, x.cols, [&](std::int64_t row) {
    backend.kernels().silu_mul(x.row(row), x.row(row) + out.cols, out.cols, out.row(row));
  });
}

void gelu_tanh(CpuBackend& backend, Matrix x) {
  for_each_row(backend, x.rows, x.cols,
               [&](std::int64_t row) { backend.kernels().gelu_tanh(x.row(row), x.cols); });
}

void gelu_exact(CpuBackend& backend, Matrix x) {
  for_each_row(backend, x.rows, 8 * x.cols, [&](std::int64_t row) {
    float* values = x.row(row);
    for (std::int64_t i = 0; i < x.cols; ++i) {
      values[i] *= 0.5f * (1.0f + std::erf(values[i] * 0.70710678f));
    }
  });
}

}  // namespace mesh::ops
