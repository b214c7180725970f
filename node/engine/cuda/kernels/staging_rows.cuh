#pragma once

#include "node/engine/cuda/kernels/device.cuh"

/// What bringing a row of inputs to shared memory begins with.
namespace mesh::engine::cuda {

struct Eight {
  float value[8];
};
__device__ inline Eight read_floats(const float* from) {
  const float4 a = __ldcg(reinterpret_cast<const float4*>(from)),
               b = __ldcg(reinterpret_cast<const float4*>(from) + 1);
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}
__device__ inline Eight widened(const uint4& packed) {
  const float2 a = widen(packed.x), b = widen(packed.y), c = widen(packed.z), d = widen(packed.w);
  return {a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y};
}
/// The norm's weights of the thread's first eight inputs; before the wait for the previous launch.
__device__ inline Eight norm_weights(const StreamLinear& linear) {
  const int at = static_cast<int>(threadIdx.x) * 8;
  return linear.norm != nullptr && at < linear.in ? read_floats(linear.norm + at) : Eight{};
}

}  // namespace mesh::engine::cuda
