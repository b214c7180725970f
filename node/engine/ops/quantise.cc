#include "node/engine/ops/quantise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

namespace mesh::ops {
namespace {

constexpr std::uint32_t kInfinity = 0x7F800000;
constexpr float kHalfLimit = 65520;  // from here on half precision is infinite
constexpr float kSmallestNormalHalf = 0x1p-14f;
constexpr float kRoundToInteger = 12582912.0f;  // 1.5 · 2^23: its ulp is 1

// The midpoints of neighbouring values, in float32 as bitsandbytes takes them.
constexpr std::array<float, 15> kMidpoints = [] {
  std::array<float, 15> points{};
  for (std::size_t i = 0; i < points.size(); ++i) points[i] = (kNf4Values[i] + kNf4Values[i + 1]) / 2;
  return points;
}();

[[gnu::always_inline]] inline float magnitude(float value) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF);
}

// Nearest half-precision value, ties to even, for |value| < kHalfLimit. Adding ½, whose ulp is that of the
// subnormal halves, rounds these.
[[gnu::always_inline]] inline float rounded_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const float normal = std::bit_cast<float>((bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000);
  const float size = magnitude(value);
  const float small = (size + 0.5f) - 0.5f;
  const float signed_small = std::bit_cast<float>(std::bit_cast<std::uint32_t>(small) | (bits & 0x80000000));
  return size < kSmallestNormalHalf ? signed_small : normal;
}

/// Bits of the largest magnitude; above those of infinity when one is not a number. As integers magnitudes
/// are in the same order.
[[gnu::always_inline]] inline std::uint32_t largest_bits(const float* values, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFF);
  return largest;
}

[[gnu::always_inline]] inline bool quantise_int8(const float* row, std::int64_t in, std::uint8_t* codes,
                                                 float* scale) {
  const float exact = std::bit_cast<float>(largest_bits(row, in));
  const bool finite = exact < kHalfLimit;  // false for NaN
  // Rounding keeps the order, so the largest rounded one is the largest one rounded.
  const float largest = finite ? rounded_to_half(exact) : 0;
  *scale = largest;
  if (largest == 0) {
    std::memset(codes, 0, static_cast<std::size_t>(in));
    return finite;
  }
  const float factor = 1.0f / largest * 127.0f;  // torch's 127 / tensor
  for (std::int64_t i = 0; i < in; ++i) {
    const float shifted = rounded_to_half(row[i]) * factor + kRoundToInteger;
    codes[i] = static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(shifted));
  }
  return true;
}

[[gnu::always_inline]] inline bool quantise_nf4_block(const float* block, std::uint8_t* codes, float* scale) {
  const std::uint32_t bits = largest_bits(block, kNf4Block);
  const float largest = std::bit_cast<float>(bits);
  *scale = largest;
  const float factor = 1.0f / (largest > 1e-38f ? largest : 1e-38f);
  std::int32_t nearest[kNf4Block];
  for (std::int64_t i = 0; i < kNf4Block; ++i) {
    const float value = block[i] * factor;
    std::int32_t code = 0;
    for (const float point : kMidpoints) code += value > point ? 1 : 0;
    nearest[i] = code;
  }
  for (std::int64_t i = 0; i < kNf4Block; i += 2) {
    codes[i / 2] = static_cast<std::uint8_t>(nearest[i] << 4 | nearest[i + 1]);
  }
  return bits < kInfinity;
}

// As rounded_to_half(): a float with 2^-9 for an ulp rounds the subnormals, whose steps are 2^-9.
[[gnu::always_inline]] inline std::uint8_t rounded_to_fp8(float value) {
  constexpr float kSmallestNormal = 0x1p-6f, kUlpOfSubnormals = 0x1p14f;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80);
  const float unlimited = magnitude(value);
  const float size = unlimited > kFp8Largest ? kFp8Largest : unlimited;
  const std::uint32_t size_bits = std::bit_cast<std::uint32_t>(size);
  const std::uint32_t normal = ((size_bits + 0x7FFFF + (size_bits >> 20 & 1)) >> 20) - (120u << 3);
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(size + kUlpOfSubnormals) - std::bit_cast<std::uint32_t>(kUlpOfSubnormals);
  const std::uint32_t code = size < kSmallestNormal ? small : normal;
  return static_cast<std::uint8_t>(sign | (size_bits > kInfinity ? 0x7F : code));
}

[[gnu::always_inline]] inline bool quantise_fp8(const float* row, std::int64_t in, std::uint8_t* codes,
                                                float* scales) {
  const std::uint32_t largest = largest_bits(row, in);
  const float scale = std::bit_cast<float>(largest) / kFp8Largest;
  std::fill_n(scales, in / scale_group(MatrixFormat::kFp8, in), scale);
  const bool finite = largest < kInfinity;
  if (scale == 0 || !finite) {
    std::memset(codes, 0, static_cast<std::size_t>(in));
    return finite;
  }
  for (std::int64_t i = 0; i < in; ++i) codes[i] = rounded_to_fp8(row[i] / scale);
  return true;
}

[[gnu::always_inline]] inline bool quantise(MatrixFormat format, const float* row, std::int64_t in,
                                            std::uint8_t* codes, float* scales) {
  if (format == MatrixFormat::kInt8) return quantise_int8(row, in, codes, scales);
  if (format == MatrixFormat::kFp8) return quantise_fp8(row, in, codes, scales);
  bool finite = true;
  for (std::int64_t block = 0; block < in / kNf4Block; ++block) {
    const std::int64_t first = block * kNf4Block;
    finite &= quantise_nf4_block(row + first, codes + first / 2, scales + block);
  }
  return finite;
}

// The same for wider vectors: no sum's order depends on them, nothing is fused, so codes are the same.
using Quantise = bool (*)(MatrixFormat, const float*, std::int64_t, std::uint8_t*, float*);
bool quantise_portable(MatrixFormat format, const float* row, std::int64_t in, std::uint8_t* codes,
                       float* scales) {
  return quantise(format, row, in, codes, scales);
}
#ifdef MESH_X86_KERNELS
[[gnu::target("avx2")]] bool quantise_avx2(MatrixFormat format, const float* row, std::int64_t in,
                                           std::uint8_t* codes, float* scales) {
  return quantise(format, row, in, codes, scales);
}
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] bool quantise_avx512(MatrixFormat format,
                                                                           const float* row, std::int64_t in,
                                                                           std::uint8_t* codes,
                                                                           float* scales) {
  return quantise(format, row, in, codes, scales);
}
#endif

Quantise best_quantise() {
#ifdef MESH_X86_KERNELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return quantise_avx512;
  if (__builtin_cpu_supports("avx2")) return quantise_avx2;
#endif
  return quantise_portable;
}

}  // namespace

std::int64_t scale_group(MatrixFormat format, std::int64_t in) {
  switch (format) {
    case MatrixFormat::kNf4:
      return std::gcd(in, kNf4Block);
    case MatrixFormat::kFp8:
      return std::gcd(in, kFp8Group);
    default:
      return in;
  }
}

std::uint8_t to_fp8(float value) {
  return rounded_to_fp8(value);
}

bool quantise_row(MatrixFormat format, const float* row, std::int64_t in, std::uint8_t* codes,
                  float* scales) {
  static const Quantise kBest = best_quantise();
  return kBest(format, row, in, codes, scales);
}

void dequantise_row(MatrixFormat format, const std::uint8_t* codes, const float* scales, std::int64_t in,
                    float* row) {
  if (format == MatrixFormat::kInt8) {
    for (std::int64_t i = 0; i < in; ++i)
      row[i] = static_cast<float>(static_cast<std::int8_t>(codes[i])) * scales[0] * kInt8Step;
    return;
  }
  const std::int64_t group = scale_group(format, in);
  if (format == MatrixFormat::kFp8) {
    for (std::int64_t i = 0; i < in; ++i) row[i] = fp8_value(codes[i]) * scales[i / group];
    return;
  }
  for (std::int64_t i = 0; i < in; ++i) {
    const int code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
    row[i] = kNf4Values[code] * scales[i / group];
  }
}

}  // namespace mesh::ops
