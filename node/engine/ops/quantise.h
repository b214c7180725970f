#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "node/engine/ops/matrix.h"

/// Quantised weights, kInt8 and kNf4 as bitsandbytes 0.50 makes and reads them, bit for bit. A row of `in`
/// weights is `in` codes and a scale for every scale_group() of them:
/// - kInt8: one byte a weight, two's complement; scale = absmax of the row in half precision;
///   code = round-half-even(half(w) · ((1 / scale) · 127)); w = (code · scale) · 0.007874015718698502 in
///   float32.
/// - kNf4: half a byte a weight, the even weight in the high half; scale = absmax of a block of 64;
///   code = number of midpoints of kNf4Values below w · (1 / scale); w = kNf4Values[code] · scale.
/// - kFp8: one E4M3 byte a weight (Open Compute Project, OFP8 revision 1.0: no infinities, 0x7f and 0xff are
///   not numbers); made here: scale = absmax of the row / 448, the same for all of its groups, code =
///   w / scale to nearest even, at most 448 in size; w = fp8_value(code) · scale. All in float32.
namespace mesh::ops {

inline constexpr std::int64_t kNf4Block = 64;
/// QLoRA (Dettmers et al. 2023), appendix E: quantiles of the normal distribution, scaled to [−1, 1].
inline constexpr float kNf4Values[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};
/// 1 / 127 as bitsandbytes rounds it.
inline constexpr float kInt8Step = 0.007874015718698502f;

inline constexpr std::int64_t kFp8Group = 128;  ///< side of the blocks that FP8 checkpoints have scales for
inline constexpr float kFp8Largest = 448;

/// The number that an E4M3 code means: as a float's exponent and mantissa it is too small by 2^(127 − 7).
constexpr float fp8_value(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80) << 24, size = code & 0x7Fu;
  if (size == 0x7F) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(sign |
                              std::bit_cast<std::uint32_t>(std::bit_cast<float>(size << 20) * 0x1p120f));
}
/// The nearest E4M3 code, ties to even, at most ±kFp8Largest; NaN becomes 0x7f or 0xff.
std::uint8_t to_fp8(float value);

constexpr bool is_quantised(MatrixFormat format) {
  return format == MatrixFormat::kInt8 || format == MatrixFormat::kNf4 || format == MatrixFormat::kFp8;
}
/// Bytes of the codes of `in` weights; `in` is even for kNf4.
constexpr std::int64_t code_bytes(MatrixFormat format, std::int64_t in) {
  return format == MatrixFormat::kNf4 ? in / 2 : in;
}
/// Consecutive weights of a row that share a scale: all for kInt8, gcd(in, 64) for kNf4 (where blocks of 64
/// run across the ends of rows, each piece has its block's scale), gcd(in, 128) for kFp8 (a checkpoint's
/// block of 128 × 128 gives its scale to the pieces of its rows; one scale a row is repeated).
std::int64_t scale_group(MatrixFormat format, std::int64_t in);
/// The format in which a matrix is kept that shall be `wanted`: kNf4 needs rows of whole blocks, others are
/// kInt8.
constexpr MatrixFormat quantised_format(MatrixFormat wanted, std::int64_t in) {
  return wanted == MatrixFormat::kNf4 && in % kNf4Block != 0 ? MatrixFormat::kInt8 : wanted;
}

/// Quantises one row of `in` weights: `codes` [code_bytes], `scales` [in / scale_group]; kNf4: in % 64 = 0.
/// False when a weight is not finite (kInt8: in half precision).
bool quantise_row(MatrixFormat format, const float* row, std::int64_t in, std::uint8_t* codes, float* scales);

/// The weights that the codes mean.
void dequantise_row(MatrixFormat format, const std::uint8_t* codes, const float* scales, std::int64_t in,
                    float* row);

}  // namespace mesh::ops
