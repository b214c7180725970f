#pragma once

#include <cuda_fp16.h>

#include "node/engine/cuda/kernels/staging_rows.cuh"

namespace mesh::engine::cuda {

/// Sum of all threads' x and the largest of their y, at every thread, in a fixed order. `shared`: one for
/// each warp; a barrier must lie between two calls.
template <int kThreads>
__device__ float2 sum_and_largest(float2 value, float2* shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value.x += __shfl_xor_sync(~0u, value.x, offset);
    value.y = fmaxf(value.y, __shfl_xor_sync(~0u, value.y, offset));
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) {
    value.x += shared[warp].x;
    value.y = fmaxf(value.y, shared[warp].y);
  }
  return value;
}

/// Brings row `row` of the product to shared memory as halves, times a power of two such that the largest is
/// in [2^kExponent, 2^(kExponent + 1)); returns what undoes that. Zeros up to `width` inputs, a multiple of
/// 32 · kWeights. In each run of that many, lane l's kWeights inputs lie by eights, 256 apart, so that lanes
/// read side by side. Rows of up to 8 · kThreads floats, or 8 · kThreads · kHeld bfloat16, are read once. All
/// threads of the block call it; a barrier must lie between two rows, and before the halves are read.
template <int kThreads, int kWeights, int kExponent>
__device__ float stage_halves(const StreamLinear& linear, const Eight& first_weights, half* x, int row,
                              int width, float2 (&shared)[kThreads / 32]) {
  constexpr int kHeld = 4;
  const int pieces = width / 8, present = linear.in / 8, thread = static_cast<int>(threadIdx.x);
  const std::int64_t offset = std::int64_t{row} * linear.in;
  float squares = 0, most = 0, factor = 1;
  const auto scale_by = [&](float largest) {
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    const int shift = min(max(kExponent - exponent, -126), 100);
    factor *= __uint_as_float(static_cast<unsigned>(shift + 127) << 23);
    return __uint_as_float(static_cast<unsigned>(127 - shift) << 23);
  };
  const auto put = [&](int piece, const Eight& eight) {
    constexpr int kSpan = 32 * kWeights, kEights = kWeights / 8;
    const int inside = piece * 8 % kSpan / 8;
    half* to = x + piece * 8 / kSpan * kSpan + inside % kEights * 256 + inside / kEights * 8;
    half2 halves[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      halves[i] = __floats2half2_rn(eight.value[2 * i] * factor, eight.value[2 * i + 1] * factor);
    }
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(halves);
  };
  const auto visit = [&](const Eight& raw, const Eight& weighted) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      squares += raw.value[i] * raw.value[i];
      most = fmaxf(most, fabsf(weighted.value[i]));
    }
  };
  float undo = 1;
  if (linear.norm != nullptr) {
    const float* from = static_cast<const float*>(linear.x) + offset;
    const auto weighted = [](Eight eight, const Eight& weights) {
#pragma unroll
      for (int i = 0; i < 8; ++i) eight.value[i] *= weights.value[i];
      return eight;
    };
    const Eight raw = thread < present ? read_floats(from + thread * 8) : Eight{};
    const Eight held = weighted(raw, first_weights);
    visit(raw, held);
    const auto later = [&](int piece, Eight& plain) {
      plain = piece < present ? read_floats(from + piece * 8) : Eight{};
      return piece < present ? weighted(plain, read_floats(linear.norm + piece * 8)) : Eight{};
    };
    Eight plain;
    for (int piece = thread + kThreads; piece < present; piece += kThreads) {
      const Eight value = later(piece, plain);
      visit(plain, value);
    }
    const float2 all = sum_and_largest<kThreads>({squares, most}, shared);
    factor = rsqrtf(all.x / static_cast<float>(linear.in) + linear.epsilon);
    undo = scale_by(all.y * factor);
    if (thread < pieces) put(thread, held);
    for (int piece = thread + kThreads; piece < pieces; piece += kThreads) put(piece, later(piece, plain));
  } else {
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const Bf*>(linear.x) + offset);
    const auto read = [&](int piece) {
      return piece < present ? __ldcg(from + piece) : make_uint4(0, 0, 0, 0);
    };
    uint4 held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i] = read(thread + i * kThreads);
    const auto compare = [&](const uint4& packed) {
      const Eight eight = widened(packed);
      visit(Eight{}, eight);
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) compare(held[i]);
    for (int piece = thread + kHeld * kThreads; piece < present; piece += kThreads) compare(read(piece));
    undo = scale_by(sum_and_largest<kThreads>({0, most}, shared).y);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int piece = thread + i * kThreads;
      if (piece < pieces) put(piece, widened(held[i]));
    }
    for (int piece = thread + kHeld * kThreads; piece < pieces; piece += kThreads)
      put(piece, widened(read(piece)));
  }
  return undo;
}

}  // namespace mesh::engine::cuda
