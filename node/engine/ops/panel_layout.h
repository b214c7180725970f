#pragma once

#include <cstdint>

#include "node/engine/ops/matrix.h"

namespace mesh::ops {

/// Bytes of the 32 scales of a group in a quantised panel.
inline constexpr std::int64_t kPanelScales = 32 * 4;

/// Where output `column` of a panel lies among the 32 values of an input, kF32 and kBf16.
constexpr std::int64_t place_in_panel(MatrixFormat format, std::int64_t column) {
  if (format == MatrixFormat::kF32) return column;
  return column < 16 ? 2 * column : 2 * (column - 16) + 1;
}

/// Bytes of the codes of `inputs` inputs in a quantised panel.
constexpr std::int64_t panel_code_bytes(MatrixFormat format, std::int64_t inputs) {
  return inputs * (format == MatrixFormat::kNf4 ? 16 : 32);
}

}  // namespace mesh::ops
