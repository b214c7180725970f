#include "node/engine/ops/embedding.h"

#include "common/base/check.h"
#include "node/engine/ops/elementwise.h"

namespace mesh::ops {

void embedding(const void* table, Element type, std::span<const std::int32_t> ids, Matrix out) {
  MESH_CHECK(static_cast<std::int64_t>(ids.size()) == out.rows);
  const auto* rows = static_cast<const std::byte*>(table);
  for (std::int64_t t = 0; t < out.rows; ++t) {
    const std::int64_t id = ids[static_cast<std::size_t>(t)];
    widen(rows + id * out.cols * element_size(type), type, out.cols, out.row(t));
  }
}

}  // namespace mesh::ops
