#pragma once

#include <cstdint>

#include "node/engine/ops/matrix.h"

namespace mesh::ops {

/// How the values of a panel follow each other (linear.h).
enum class PanelOrder : std::uint8_t { kOutputs, kPairs };

/// Bytes of the 32 scales of a group in a quantised panel.
inline constexpr std::int64_t kPanelScales = 32 * 4;

/// Where output `column` of a panel lies among the 32 values of an input, kF32 and kBf16 in kOutputs.
constexpr std::int64_t place_in_panel(MatrixFormat format, std::int64_t column) {
  if (format == MatrixFormat::kF32) return column;
  return column < 16 ? 2 * column : 2 * (column - 16) + 1;
}

/// The same among all values of the inputs, kF32 and kBf16.
constexpr std::int64_t place_in_panel(PanelOrder order, MatrixFormat format, std::int64_t column,
                                      std::int64_t input) {
  if (order == PanelOrder::kPairs) return input / 2 * 64 + column * 2 + input % 2;
  return input * 32 + place_in_panel(format, column);
}

/// Where the byte of `input` lies among a group's codes, kInt8 and kFp8.
constexpr std::int64_t code_place(PanelOrder order, std::int64_t column, std::int64_t input) {
  return order == PanelOrder::kPairs ? input / 2 * 64 + column * 2 + input % 2 : input * 32 + column;
}

/// Where the code of `input` lies among a group's codes of kNf4: a word of 32 bits and the lowest of its
/// bits.
struct Nf4Place {
  std::int64_t word, bit;
};
constexpr Nf4Place nf4_place(PanelOrder order, std::int64_t column, std::int64_t input) {
  if (order == PanelOrder::kPairs) {
    return {input / 8 * 32 + column, input % 2 * 16 + input % 8 / 2 * 4};
  }
  return {input / 4 * 16 + column % 16, column / 16 * 16 + input % 4 * 4};
}

/// Rows of a matrix in kPairs are multiples of this long.
constexpr std::int64_t pairs_multiple(MatrixFormat format) {
  return format == MatrixFormat::kNf4 ? 8 : 2;
}

/// Bytes of the codes of `inputs` inputs in a quantised panel.
constexpr std::int64_t panel_code_bytes(MatrixFormat format, std::int64_t inputs) {
  return inputs * (format == MatrixFormat::kNf4 ? 16 : 32);
}

}  // namespace mesh::ops
