#pragma once

#include "node/engine/cuda/kernels/device.cuh"

/// What a product of few rows does with an output's sum, by one thread.
namespace mesh::engine::cuda {

__device__ inline void store_output(const StreamLinear& linear, int row, int output, float value) {
  if (linear.bias != nullptr) value += linear.bias[output];
  float* y = static_cast<float*>(linear.y) + std::int64_t{row} * linear.out + output;
  *y = linear.store == StreamStore::kAdd ? __ldcg(y) + value : value;
}

/// Output `output` of the first half of the rows, whose gate and up sums these are.
__device__ inline void store_gated(const StreamLinear& linear, int row, int output, float gate, float up) {
  const int half = linear.out / 2;
  if (linear.bias != nullptr) gate += linear.bias[output], up += linear.bias[output + half];
  static_cast<Bf*>(linear.y)[std::int64_t{row} * half + output] =
      __float2bfloat16(gate / (1 + __expf(-gate)) * up);
}

}  // namespace mesh::engine::cuda
