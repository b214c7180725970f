#pragma once

#include <cstdint>

namespace mesh::ops {

/// A bfloat16 value's bits: the upper half of a float.
struct Bf16 {
  std::uint16_t bits = 0;
};

enum class Element : std::uint8_t { kF32, kBf16, kF16 };

constexpr std::int64_t element_size(Element type) {
  return type == Element::kF32 ? 4 : 2;
}

/// How a weight matrix is stored (quantise.h has the quantised ones).
enum class MatrixFormat : std::uint8_t { kF32, kBf16, kInt8, kNf4, kFp8 };

/// A matrix that somebody else owns: rows of `cols` contiguous values, `stride` values from one row to the
/// next. Activations are float32 throughout the CPU ops.
template <class T>
struct MatrixView {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  MatrixView() = default;
  MatrixView(T* first, std::int64_t row_count, std::int64_t col_count)
      : MatrixView(first, row_count, col_count, col_count) {}
  MatrixView(T* first, std::int64_t row_count, std::int64_t col_count, std::int64_t row_stride)
      : data(first), rows(row_count), cols(col_count), stride(row_stride) {}

  T* row(std::int64_t index) const { return data + index * stride; }
  /// `count` columns of every row, from `begin` on.
  MatrixView columns(std::int64_t begin, std::int64_t count) const {
    return {data + begin, rows, count, stride};
  }
  MatrixView row_range(std::int64_t begin, std::int64_t count) const {
    return {row(begin), count, cols, stride};
  }
  operator MatrixView<const T>() const { return {data, rows, cols, stride}; }
};

using Matrix = MatrixView<float>;
using ConstMatrix = MatrixView<const float>;

}  // namespace mesh::ops
