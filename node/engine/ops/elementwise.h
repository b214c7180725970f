#pragma once

#include <cstdint>

#include "node/engine/ops/backend.h"

namespace mesh::ops {

/// x += y, the same shape.
void add(CpuBackend& backend, Matrix x, ConstMatrix y);

/// Rounds to nearest even; NaN stays a (quiet) NaN.
Bf16 to_bf16(float value);
float to_float(Bf16 value);
float half_to_float(std::uint16_t bits);  ///< IEEE binary16

/// out[r] = x[r] rounded, and back; out [rows, cols] without gaps between rows. Source and target may be
/// unaligned.
void to_bf16(CpuBackend& backend, ConstMatrix x, void* out);
void from_bf16(CpuBackend& backend, const void* in, Matrix out);

/// out [count] floats from `count` values of `type`; data may be unaligned. For loading norms, biases,
/// embeddings.
void widen(const void* data, Element type, std::int64_t count, float* out);

/// Whether no value is NaN or infinite.
bool all_finite(CpuBackend& backend, ConstMatrix x);

/// Index of the largest value, the lowest among equals; count ≥ 1. NaNs never win.
std::int64_t argmax(const float* x, std::int64_t count);

/// ln Σ e^x; the powers around the largest value are float32 to 2 ulp, their sum is float64 in ascending
/// order, the same on every machine; count ≥ 1. NaNs stay. log-softmax of x[i] is x[i] − log_sum_exp.
double log_sum_exp(const float* x, std::int64_t count);

}  // namespace mesh::ops
