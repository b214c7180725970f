#pragma once

#include <algorithm>
#include <cstdint>

#include "node/engine/ops/backend.h"

namespace mesh::ops {

/// Calls body(row) for every row, on the pool when the rows hold enough work to pay for it.
template <class Body>
void for_each_row(CpuBackend& backend, std::int64_t rows, std::int64_t cols, const Body& body) {
  constexpr std::int64_t kValues = 1 << 14;  // a few µs
  const std::int64_t grain = std::max<std::int64_t>(1, kValues / std::max<std::int64_t>(cols, 1));
  backend.pool().parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
}

}  // namespace mesh::ops
