#pragma once

#include <cstdint>

#include "node/engine/ops/matrix.h"

/// Quantised weights as bitsandbytes 0.50 makes and reads them, bit for bit. A row of `in` weights is `in`
/// codes and a scale for every scale_group() of them:
/// - kInt8: one byte a weight, two's complement; scale = absmax of the row in half precision;
///   code = round-half-even(half(w) · ((1 / scale) · 127)); w = (code · scale) · 0.007874015718698502 in
///   float32.
/// - kNf4: half a byte a weight, the even weight in the high half; scale = absmax of a block of 64;
///   code = number of midpoints of kNf4Values below w · (1 / scale); w = kNf4Values[code] · scale.
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

constexpr bool is_quantised(MatrixFormat format) {
  return format == MatrixFormat::kInt8 || format == MatrixFormat::kNf4;
}
/// Bytes of the codes of `in` weights; `in` is even for kNf4.
constexpr std::int64_t code_bytes(MatrixFormat format, std::int64_t in) {
  return format == MatrixFormat::kInt8 ? in : in / 2;
}
/// Consecutive weights of a row that share a scale: all for kInt8, gcd(in, 64) for kNf4 (where blocks of 64
/// run across the ends of rows, each piece has its block's scale).
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
