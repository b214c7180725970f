#include "node/engine/ops/elementwise.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "node/engine/ops/kernels.h"
#include "node/engine/ops/row_ops.h"

namespace mesh::ops {

void add(CpuBackend& backend, Matrix x, ConstMatrix y) {
  MESH_CHECK(x.rows == y.rows && x.cols == y.cols);
  for_each_row(backend, x.rows, x.cols,
               [&](std::int64_t row) { backend.kernels().add(x.row(row), y.row(row), x.cols); });
}

Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 31U;
  const std::uint32_t mantissa = bits & 1023U;
  if (exponent == 0) {  // zero or subnormal: mantissa · 2^−24
    const float value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -value : value;
  }
  const std::uint32_t wide = exponent == 31 ? 255U : exponent + 112U;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

void to_bf16(CpuBackend& backend, ConstMatrix x, void* out) {
  for_each_row(backend, x.rows, x.cols, [&](std::int64_t row) {
    backend.kernels().to_bf16(x.row(row), x.cols, static_cast<std::byte*>(out) + row * x.cols * 2);
  });
}

void from_bf16(CpuBackend& backend, const void* in, Matrix out) {
  for_each_row(backend, out.rows, out.cols, [&](std::int64_t row) {
    backend.kernels().from_bf16(static_cast<const std::byte*>(in) + row * out.cols * 2, out.cols,
                                out.row(row));
  });
}

void widen(const void* data, Element type, std::int64_t count, float* out) {
  const auto* from = static_cast<const std::byte*>(data);
  if (type == Element::kF32) {
    std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  const auto bits = [from](std::int64_t i) {
    std::uint16_t value;
    std::memcpy(&value, from + i * 2, sizeof(value));
    return value;
  };
  if (type == Element::kBf16) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = std::bit_cast<float>(std::uint32_t{bits(i)} << 16);
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = half_to_float(bits(i));
  }
}

bool all_finite(CpuBackend& backend, ConstMatrix x) {
  std::atomic<bool> finite{true};
  for_each_row(backend, x.rows, x.cols, [&](std::int64_t row) {
    if (!backend.kernels().all_finite(x.row(row), x.cols)) finite.store(false, std::memory_order_relaxed);
  });
  return finite.load();
}

std::int64_t argmax(const float* x, std::int64_t count) {
  MESH_CHECK(count >= 1);
  const float largest = portable_kernels().largest(x, count);
  const float* const found = std::find(x, x + count, largest);
  return found == x + count ? 0 : found - x;
}

double log_sum_exp(const float* x, std::int64_t count) {
  const float largest = x[argmax(x, count)];
  if (std::isinf(largest)) return largest;
  // Short pieces: while one is summed, each addition waiting for the last, powers of the next are computed.
  constexpr std::int64_t kPiece = 32;
  float powers[kPiece];
  double total = 0;
  for (std::int64_t begin = 0; begin < count; begin += kPiece) {
    const std::int64_t piece = std::min(kPiece, count - begin);
    for (std::int64_t i = 0; i < piece; ++i) powers[i] = x[begin + i] - largest;
    portable_kernels().exp(powers, piece);  // the same bits on every machine
    for (std::int64_t i = 0; i < piece; ++i) total += powers[i];
  }
  return largest + std::log(total);
}

}  // namespace mesh::ops
