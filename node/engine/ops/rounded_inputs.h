#pragma once

#include <cstdint>

/// What products of rounded inputs compute (linear.h has what of it shows):
/// - bfloat16 and FP8 weights: inputs are rounded to bfloat16, to nearest even.
/// - INT8 and NF4 weights: the inputs of a row that one chain covers become integers, x ≈ q · step with
///   step = max |x| / kInputSteps and q to nearest even; NF4 values become the integers below, within 1.3e-4
///   of their size. Sums of q · code over a group are exact in 32 bits.
namespace mesh::ops {

/// 64 inputs (a group of NF4) or 256 (a chain of INT8) at their largest sum to less than 2^31.
inline constexpr float kInputSteps = 16383;
/// A chain whose inputs are all at most so large counts as zeros.
inline constexpr float kSmallestInput = 0x1p-100f;

/// kNf4Values · kNf4One to nearest; of all factors below 2^11 this one errs least.
inline constexpr int kNf4One = 1722;
inline constexpr std::int16_t kNf4Integers[16] = {-1722, -1199, -904, -680, -490, -318, -157, 0,
                                                  137,   277,   424,  582,  759,  969,  1245, 1722};

}  // namespace mesh::ops
