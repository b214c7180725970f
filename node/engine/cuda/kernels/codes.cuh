#pragma once

#include <cuda_fp16.h>

#include "node/engine/cuda/kernels/device.cuh"
#include "node/engine/ops/quantise.h"

/// Codes of quantised weights (ops/quantise.h) as the kernels multiply them. A piece is 16 bytes of one row.
/// What decode() gives, times kUnit and the scale, is the weight.
namespace mesh::engine::cuda {

using ops::MatrixFormat;

/// Bytes 0 and 1, or 2 and 3, of `word` as the low bytes of two halves whose high bytes come from `high`.
__device__ inline std::uint32_t low_bytes(std::uint32_t word, std::uint32_t high, bool upper) {
  return __byte_perm(word, high, upper ? 0x4342 : 0x4140);
}

__device__ inline half2 as_halves(std::uint32_t word) {
  return *reinterpret_cast<const half2*>(&word);
}

template <MatrixFormat>
struct Codes;

template <>
struct Codes<MatrixFormat::kInt8> {
  static constexpr int kWeights = 16;  ///< of a piece
  static constexpr int kTableBytes = 0;
  static constexpr float kUnit = ops::kInt8Step;

  __device__ explicit Codes(const std::byte*) {}
  __device__ static void fill_table(std::byte*) {}
  /// Four weights: 1,024 + (code + 128) is a half whose low byte is the code's.
  __device__ void decode(std::uint32_t word, half2 (&to)[2]) const {
    word ^= 0x80808080u;
    const half2 offset = __half2half2(__ushort_as_half(0x6480));  // 1,152
    to[0] = __hsub2(as_halves(low_bytes(word, 0x64646464u, false)), offset);
    to[1] = __hsub2(as_halves(low_bytes(word, 0x64646464u, true)), offset);
  }
  __device__ static float value(const std::uint8_t* row, int at, const float* = nullptr) {
    return static_cast<float>(static_cast<std::int8_t>(row[at]));
  }
};

template <>
struct Codes<MatrixFormat::kFp8> {
  static constexpr int kWeights = 16;
  static constexpr int kInputExponent = 3;  ///< 8 products of an input < 2^(this + 1) fit in a half
  static constexpr int kTableBytes = 0;
  static constexpr float kUnit = 1;

  __device__ explicit Codes(const std::byte*) {}
  __device__ static void fill_table(std::byte*) {}
  /// The two low bytes. As the upper byte of a half, shifted by the wider exponent, a code is too small by
  /// 2^8.
  __device__ static half2 pair(std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 890
    std::uint32_t halves;
    asm("{.reg .b16 low; cvt.u16.u32 low, %1; cvt.rn.f16x2.e4m3x2 %0, low;}" : "=r"(halves) : "r"(bytes));
    return as_halves(halves);
#else
    const std::uint32_t high = __byte_perm(bytes, 0, 0x1404);
    return __hmul2(as_halves((high & 0x80008000u) | (high >> 1 & 0x3f803f80u)),
                   __half2half2(__ushort_as_half(0x5c00)));  // 256
#endif
  }
  __device__ void decode(std::uint32_t word, half2 (&to)[2]) const {
    to[0] = pair(word);
    to[1] = pair(word >> 16);
  }
  __device__ static float value(const std::uint8_t* row, int at, const float* = nullptr) {
    return __low2float(pair(row[at]));
  }
};

static __constant__ const float kQuantiles[16] = {
    ops::kNf4Values[0],  ops::kNf4Values[1],  ops::kNf4Values[2],  ops::kNf4Values[3],
    ops::kNf4Values[4],  ops::kNf4Values[5],  ops::kNf4Values[6],  ops::kNf4Values[7],
    ops::kNf4Values[8],  ops::kNf4Values[9],  ops::kNf4Values[10], ops::kNf4Values[11],
    ops::kNf4Values[12], ops::kNf4Values[13], ops::kNf4Values[14], ops::kNf4Values[15]};

/// A table of the pairs that a byte means, a copy for each lane, so that lanes never wait for a bank.
template <>
struct Codes<MatrixFormat::kNf4> {
  static constexpr int kWeights = 32;
  static constexpr int kInputExponent = 11;
  static constexpr int kTableBytes = 256 * 32 * 4;
  static constexpr float kUnit = 1;

  __device__ explicit Codes(const std::byte* table) : table_(table + threadIdx.x % 32 * 4) {}
  /// Words [byte][lane]; all threads of the block.
  __device__ static void fill_table(std::byte* table) {
    auto* const words = reinterpret_cast<half2*>(table);
    for (unsigned i = threadIdx.x; i < 256 * 32; i += blockDim.x) {
      words[i] = __floats2half2_rn(kQuantiles[i / 32 / 16], kQuantiles[i / 32 % 16]);
    }
  }
  __device__ half2 pair(std::uint32_t offset) const {
    return *reinterpret_cast<const half2*>(table_ + (offset & 0x7f80u));
  }
  /// Eight weights.
  __device__ void decode(std::uint32_t word, half2 (&to)[4]) const {
    to[0] = pair(word << 7);
    to[1] = pair(word >> 1);
    to[2] = pair(word >> 9);
    to[3] = pair(word >> 17);
  }
  /// `quantiles`: where lanes may read different ones at once.
  __device__ static float value(const std::uint8_t* row, int at, const float* quantiles = kQuantiles) {
    return quantiles[at % 2 == 0 ? row[at / 2] >> 4 : row[at / 2] & 15];
  }

 private:
  const std::byte* table_;
};

/// Code `at` of `codes` under its scale, rounded as ops::dequantise_row does.
template <MatrixFormat kFormat>
__device__ float weight_of(const std::uint8_t* codes, float scale, int at,
                           const float* quantiles = kQuantiles) {
  using Format = Codes<kFormat>;
  const float value = Format::value(codes, at, quantiles);
  if constexpr (kFormat == MatrixFormat::kInt8) return value * scale * Format::kUnit;
  return value * Format::kUnit * scale;
}

/// The same matrix, its format known to the compiler.
template <MatrixFormat kFormat>
__device__ CodedMatrix known(CodedMatrix matrix) {
  matrix.format = kFormat;
  return matrix;
}
__device__ inline const std::uint8_t* row_of(const CodedMatrix& matrix, std::int64_t row) {
  return static_cast<const std::uint8_t*>(matrix.rows) + row * matrix.row_bytes();
}
__device__ inline float scale_of(const CodedMatrix& matrix, const std::uint8_t* row, int at) {
  return *reinterpret_cast<const float*>(row + matrix.scale_at(at));
}

__device__ inline float coded_weight(const CodedMatrix& matrix, int row_index, int at) {
  const std::uint8_t* row = row_of(matrix, row_index);
  const std::uint8_t* code = row + matrix.code_at(at);
  const float scale = scale_of(matrix, row, at);
  switch (matrix.format) {
    case MatrixFormat::kNf4:
      return weight_of<MatrixFormat::kNf4>(code, scale, at % 2);
    case MatrixFormat::kFp8:
      return weight_of<MatrixFormat::kFp8>(code, scale, 0);
    default:
      return weight_of<MatrixFormat::kInt8>(code, scale, 0);
  }
}

}  // namespace mesh::engine::cuda
