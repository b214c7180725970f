#pragma once

#include "node/engine/cuda/kernels/staging_rows.cuh"

/// Inputs as integers, scaled by chains of 256: each chain's unit is found by the warp that brings it.
namespace mesh::engine::cuda {

inline constexpr int kChain = 256;  ///< inputs that share a unit

/// The largest magnitude of a warp's values: NaN, if there is one.
__device__ inline float largest_of_warp(const Eight& eight) {
  unsigned most = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) most = max(most, __float_as_uint(fabsf(eight.value[i])));
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) most = max(most, __shfl_xor_sync(~0u, most, offset));
  return __uint_as_float(most);
}

/// Eight inputs as integers of 15 bits, 128 · high + low. In each run of 512 inputs the high bytes lie before
/// the low ones.
__device__ inline void put_integers(std::byte* x, int piece, const Eight& eight, float inverse) {
  std::uint32_t high[2] = {}, low[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int value = __float2int_rn(eight.value[i] * inverse), upper = (value + 64) >> 7;
    high[i / 4] |= (static_cast<std::uint32_t>(upper) & 0xffu) << (i % 4 * 8);
    low[i / 4] |= (static_cast<std::uint32_t>(value - upper * 128) & 0xffu) << (i % 4 * 8);
  }
  std::byte* const to = x + piece / 64 * 1024 + piece % 64 * 8;
  *reinterpret_cast<uint2*>(to) = make_uint2(high[0], high[1]);
  *reinterpret_cast<uint2*>(to + 512) = make_uint2(low[0], low[1]);
}

/// Brings row `row` of the product to shared memory as integers, and each chain's unit to units [width /
/// kChain]; zeros up to `width` inputs, a multiple of 512. Returns what all sums of products in their chains'
/// units are to be multiplied with: the norm's factor. All threads of the block call it; a barrier must lie
/// between two rows, and before the inputs are read.
template <int kThreads>
__device__ float stage_integers(const StreamLinear& linear, const Eight& first_weights, std::byte* x,
                                float* units, int row, int width, float2 (&shared)[kThreads / 32]) {
  constexpr float kMost = 127 * 128;
  constexpr int kAhead = 4;  // reads on their way
  const int pieces = width / 8, present = linear.in / 8, thread = static_cast<int>(threadIdx.x);
  const std::int64_t offset = std::int64_t{row} * linear.in;
  const auto put = [&](int piece, const Eight& eight) {
    const float largest = largest_of_warp(eight);
    put_integers(x, piece, eight, largest > 1e-30f ? kMost / largest : 0);  // 0: too small, or no number
    if (thread % 32 == 0) units[piece / 32] = largest / kMost;
  };
  if (linear.norm == nullptr) {
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const Bf*>(linear.x) + offset);
    for (int first = thread; first < pieces; first += kAhead * kThreads) {
      uint4 held[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int piece = first + i * kThreads;
        held[i] = piece < present ? __ldcg(from + piece) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i * kThreads < pieces) put(first + i * kThreads, widened(held[i]));
      }
    }
    return 1;
  }
  const float* from = static_cast<const float*>(linear.x) + offset;
  float squares = 0;
  for (int piece = thread; piece < pieces; piece += kThreads) {
    Eight eight = piece < present ? read_floats(from + piece * 8) : Eight{};
    const Eight weights = piece == thread   ? first_weights
                          : piece < present ? read_floats(linear.norm + piece * 8)
                                            : Eight{};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      squares += eight.value[i] * eight.value[i], eight.value[i] *= weights.value[i];
    put(piece, eight);
  }
  squares = sum_over_lanes(squares);
  if (thread % 32 == 0) shared[thread / 32].x = squares;
  __syncthreads();
  squares = shared[0].x;
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) squares += shared[warp].x;
  return rsqrtf(squares / static_cast<float>(linear.in) + linear.epsilon);
}

}  // namespace mesh::engine::cuda
