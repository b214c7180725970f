#pragma once

#include "node/engine/cuda/kernels/device.cuh"

/// The rows of a product with few of them, brought to shared memory as bfloat16. All threads of a block call
/// these.
namespace mesh::engine::cuda {

/// Values [first, first + width) of each row, `stride` values apart; zeros past the end. width is a multiple
/// of 8.
template <int kThreads>
__device__ void stage_rows(const StreamLinear& linear, Bf* x, int stride, int first, int width) {
  for (int i = threadIdx.x; i < linear.rows * (width / 8); i += kThreads) {
    const int row = i / (width / 8), k = i % (width / 8) * 8;
    uint4 value = make_uint4(0, 0, 0, 0);
    if (first + k < linear.in) {
      value = __ldcg(reinterpret_cast<const uint4*>(static_cast<const Bf*>(linear.x) +
                                                    std::int64_t{row} * linear.in + first + k));
    }
    *reinterpret_cast<uint4*>(x + row * stride + k) = value;
  }
}

/// The same of whole float32 rows, normalised. `shared` has 33 floats.
template <int kThreads>
__device__ void stage_normalised(const StreamLinear& linear, Bf* x, int stride, int width, float* shared) {
  constexpr int kHeld = 4;  // pieces of four values that are not read twice
  const int pieces = linear.in / 4;
  for (int row = 0; row < linear.rows; ++row) {
    const float4* from =
        reinterpret_cast<const float4*>(static_cast<const float*>(linear.x) + std::int64_t{row} * linear.in);
    const float4* weight = reinterpret_cast<const float4*>(linear.norm);
    float4 held[kHeld], weights[kHeld];
    float squares = 0;
    const auto square = [&](float4 v) { squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kThreads;
      held[i] = at < pieces ? __ldcg(from + at) : make_float4(0, 0, 0, 0);
      weights[i] = at < pieces ? weight[at] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) square(held[i]);
    for (int at = static_cast<int>(threadIdx.x) + kHeld * kThreads; at < pieces; at += kThreads)
      square(__ldcg(from + at));
    const float factor =
        rsqrtf(sum_over_block(squares, shared) / static_cast<float>(linear.in) + linear.epsilon);
    const auto put = [&](int at, float4 v, float4 w) {
      if (at >= width / 4) return;
      *reinterpret_cast<uint2*>(x + row * stride + at * 4) = make_uint2(
          narrow(v.x * factor * w.x, v.y * factor * w.y), narrow(v.z * factor * w.z, v.w * factor * w.w));
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) put(static_cast<int>(threadIdx.x) + i * kThreads, held[i], weights[i]);
    for (int at = static_cast<int>(threadIdx.x) + kHeld * kThreads; at < width / 4; at += kThreads) {
      const float4 none = make_float4(0, 0, 0, 0);
      put(at, at < pieces ? __ldcg(from + at) : none, at < pieces ? weight[at] : none);
    }
  }
}

}  // namespace mesh::engine::cuda
