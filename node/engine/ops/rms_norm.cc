#include "node/engine/ops/rms_norm.h"

#include "common/base/check.h"
#include "node/engine/ops/kernels.h"
#include "node/engine/ops/row_ops.h"

namespace mesh::ops {

void rms_norm(CpuBackend& backend, ConstMatrix x, const float* weight, float eps, Matrix out,
              float weight_offset) {
  MESH_CHECK(x.rows == out.rows && x.cols == out.cols);
  for_each_row(backend, x.rows, x.cols, [&](std::int64_t row) {
    backend.kernels().rms_norm(x.row(row), weight, weight_offset, eps, x.cols, out.row(row));
  });
}

void rms_norm_heads(CpuBackend& backend, Matrix x, std::int64_t heads, const float* weight, float eps,
                    float weight_offset) {
  MESH_CHECK(heads > 0 && x.cols % heads == 0);
  const std::int64_t head_dim = x.cols / heads;
  for_each_row(backend, x.rows, x.cols, [&](std::int64_t row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      float* values = x.row(row) + head * head_dim;
      backend.kernels().rms_norm(values, weight, weight_offset, eps, head_dim, values);
    }
  });
}

}  // namespace mesh::ops
