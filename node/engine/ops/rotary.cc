#include "node/engine/ops/rotary.h"

#include "common/base/check.h"
#include "node/engine/ops/kernels.h"
#include "node/engine/ops/row_ops.h"

namespace mesh::ops {

void rotary(CpuBackend& backend, Matrix x, std::int64_t heads, ConstMatrix cos, ConstMatrix sin) {
  MESH_CHECK(heads > 0 && x.cols % heads == 0 && cos.rows == x.rows && sin.rows == x.rows &&
             cos.cols == sin.cols);
  const std::int64_t head_dim = x.cols / heads;
  MESH_CHECK(2 * cos.cols <= head_dim);
  for_each_row(backend, x.rows, x.cols, [&](std::int64_t row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      backend.kernels().rotary(x.row(row) + head * head_dim, cos.row(row), sin.row(row), cos.cols);
    }
  });
}

}  // namespace mesh::ops
