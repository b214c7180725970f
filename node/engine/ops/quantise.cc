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

float magnitude(float value) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF);
}

// Nearest half-precision value, ties to even, for |value| < kHalfLimit. Adding ½, whose ulp is that of the
// subnormal halves, rounds these.
float rounded_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const float normal = std::bit_cast<float>((bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000);
  const float size = magnitude(value);
  const float small = (size + 0.5f) - 0.5f;
  const float signed_small = std::bit_cast<float>(std::bit_cast<std::uint32_t>(small) | (bits & 0x80000000));
  return size < kSmallestNormalHalf ? signed_small : normal;
}

bool quantise_int8(const float* row, std::int64_t in, std::uint8_t* codes, float* scale) {
  float largest = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < in; ++i) {
    finite &= magnitude(row[i]) < kHalfLimit;  // false for NaN
    const float size = magnitude(rounded_to_half(row[i]));
    largest = size > largest ? size : largest;
  }
  *scale = largest;
  if (largest == 0 || !finite) {
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

bool quantise_nf4_block(const float* block, std::uint8_t* codes, float* scale) {
  float largest = 0;
  std::uint32_t all_bits = 0;
  for (std::int64_t i = 0; i < kNf4Block; ++i) {
    const float size = magnitude(block[i]);
    all_bits = std::max(all_bits, std::bit_cast<std::uint32_t>(size));
    largest = size > largest ? size : largest;
  }
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
  return all_bits < kInfinity;
}

bool quantise_fp8(const float* row, std::int64_t in, std::uint8_t* codes, float* scales) {
  float largest = 0;
  std::uint32_t all_bits = 0;
  for (std::int64_t i = 0; i < in; ++i) {
    const float size = magnitude(row[i]);
    all_bits = std::max(all_bits, std::bit_cast<std::uint32_t>(size));
    largest = size > largest ? size : largest;
  }
  const float scale = largest / kFp8Largest;
  std::fill_n(scales, in / scale_group(MatrixFormat::kFp8, in), scale);
  const bool finite = all_bits < kInfinity;
  if (scale == 0 || !finite) {
    std::memset(codes, 0, static_cast<std::size_t>(in));
    return finite;
  }
  for (std::int64_t i = 0; i < in; ++i) codes[i] = to_fp8(row[i] / scale);
  return true;
}

}  // namespace

// As rounded_to_half(): a float with 2^-9 for an ulp rounds the subnormals, whose steps are 2^-9.
std::uint8_t to_fp8(float value) {
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

bool quantise_row(MatrixFormat format, const float* row, std::int64_t in, std::uint8_t* codes,
                  float* scales) {
  if (format == MatrixFormat::kInt8) return quantise_int8(row, in, codes, scales);
  if (format == MatrixFormat::kFp8) return quantise_fp8(row, in, codes, scales);
  bool finite = true;
  for (std::int64_t block = 0; block < in / kNf4Block; ++block) {
    const std::int64_t first = block * kNf4Block;
    finite &= quantise_nf4_block(row + first, codes + first / 2, scales + block);
  }
  return finite;
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
