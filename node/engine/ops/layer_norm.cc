#include "node/engine/ops/layer_norm.h"

#include "common/base/check.h"
#include "node/engine/ops/kernels.h"
#include "node/engine/ops/row_ops.h"

namespace mesh::ops {

void layer_norm(CpuBackend& backend, ConstMatrix x, const float* weight, const float* bias, float eps,
                Matrix out) {
  MESH_CHECK(x.rows == out.rows && x.cols == out.cols);
  for_each_row(backend, x.rows, x.cols, [&](std::int64_t row) {
    backend.kernels().layer_norm(x.row(row), weight, bias, eps, x.cols, out.row(row));
  });
}

}  // namespace mesh::ops
