#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "node/engine/ops/quantise.h"

namespace mesh::engine::cuda {

/// A quantised matrix (ops/quantise.h) as it lies on the GPU: a row is its codes, then its scales, each part
/// padded to 32 bytes, so that one stream brings both and none reads half a sector. Warps read runs of 512
/// bytes of codes and the scales of as many inputs; the last run may be shorter.
struct CodedMatrix {
  void* rows = nullptr;  ///< [out, row_bytes()]
  ops::MatrixFormat format = ops::MatrixFormat::kInt8;
  int out = 0, in = 0;
  int group = 0;  ///< inputs of a row that share a scale: ops::scale_group

  static constexpr int kRunBytes = 512;  ///< of codes

  constexpr bool scale_per_row() const { return format == ops::MatrixFormat::kInt8; }
  constexpr int run() const { return format == ops::MatrixFormat::kNf4 ? 2 * kRunBytes : kRunBytes; }
  constexpr int scale_bytes(int inputs) const { return (scale_per_row() ? 1 : groups_of(inputs)) * 4; }
  /// Bytes of a row before its scales, and of all.
  constexpr int scales_at() const { return padded(static_cast<int>(ops::code_bytes(format, in))); }
  constexpr int row_bytes() const { return scales_at() + padded(scale_bytes(in)); }
  /// Bytes of a row before the code of input `at` (kNf4: of it and its neighbour), and before its scale.
  constexpr int code_at(int at) const { return static_cast<int>(ops::code_bytes(format, at)); }
  constexpr int scale_at(int at) const { return scales_at() + (scale_per_row() ? 0 : groups_of(at) * 4); }

  constexpr int groups_of(int inputs) const {
#ifdef __CUDA_ARCH__
    return inputs >> (__ffs(group) - 1);  // a power of two where scales are not those of rows
#else
    return inputs / group;
#endif
  }
  static constexpr int padded(int bytes) { return (bytes + 31) / 32 * 32; }
};

/// A row of the layout ← ops::code_bytes(in) codes and in / group scales; `to`: row_bytes() bytes of the
/// host.
inline void lay_row(const CodedMatrix& matrix, const std::uint8_t* codes, const float* scales,
                    std::byte* to) {
  const auto code_bytes = static_cast<std::size_t>(ops::code_bytes(matrix.format, matrix.in));
  const auto scales_at = static_cast<std::size_t>(matrix.scales_at());
  const auto scale_bytes = static_cast<std::size_t>(matrix.scale_bytes(matrix.in));
  const auto row_bytes = static_cast<std::size_t>(matrix.row_bytes());
  std::memcpy(to, codes, code_bytes);
  std::memset(to + code_bytes, 0, scales_at - code_bytes);
  std::memcpy(to + scales_at, scales, scale_bytes);
  std::memset(to + scales_at + scale_bytes, 0, row_bytes - scales_at - scale_bytes);
}

}  // namespace mesh::engine::cuda
