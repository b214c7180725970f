#pragma once

#include "node/engine/cuda/kernels/device.cuh"

namespace mesh::engine::cuda {

/// Eight consecutive values of one head; kDim / 8 lanes side by side hold the head.
template <int kDim>
struct HeadRow {
  float value[8];

  __device__ uint4 packed() const {
    return make_uint4(narrow(value[0], value[1]), narrow(value[2], value[3]), narrow(value[4], value[5]),
                      narrow(value[6], value[7]));
  }
};

/// What a step writes and later launches read goes around the L1 cache.
__device__ inline void read_eight(const float* from, float (&to)[8]) {
  const float4 low = __ldcg(reinterpret_cast<const float4*>(from));
  const float4 high = __ldcg(reinterpret_cast<const float4*>(from) + 1);
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

/// Head `head` of a row of qkv (query heads, key heads, value heads) with its bias, normalised and rotated as
/// the preparation says. The lanes of a head call it together, all lanes of their warp at the same time.
template <int kDim>
__device__ HeadRow<kDim> read_head(const AttentionRows& attention, int row, int head, int lane) {
  const HeadPreparation& preparation = attention.preparation;
  const int kv_heads = attention.kv.kv_heads, heads = attention.heads;
  const float* from = attention.qkv + (std::int64_t{row} * (heads + 2 * kv_heads) + head) * kDim;
  const int pairs = preparation.pairs, dim = lane * 8;
  const int other = dim < pairs ? dim + pairs : dim < 2 * pairs ? dim - pairs : dim;
  const bool is_value = head >= heads + kv_heads;
  HeadRow<kDim> own;
  float partner[8], factors[8];
  read_eight(from + dim, own.value);
  read_eight(from + other, partner);
  if (attention.bias != nullptr) {
    const float* bias = attention.bias + head * kDim;
#pragma unroll
    for (int i = 0; i < 8; ++i) own.value[i] += bias[dim + i], partner[i] += bias[other + i];
  }
  if (preparation.query_norm != nullptr) {
    const float* norm = head < heads ? preparation.query_norm : preparation.key_norm;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += own.value[i] * own.value[i];
    const float factor = rsqrtf(sum_over_lanes<kDim / 8>(squares) / kDim + preparation.epsilon);
#pragma unroll
    for (int i = 0; i < 8 && !is_value; ++i) {
      own.value[i] *= factor * norm[dim + i];
      partner[i] *= factor * norm[other + i];
    }
  }
  if (is_value || dim >= 2 * pairs) return own;
  const int pair = row * pairs + (dim < pairs ? dim : other);
  read_eight(preparation.sin + pair, factors);
#pragma unroll
  for (int i = 0; i < 8; ++i) partner[i] *= dim < pairs ? -factors[i] : factors[i];
  read_eight(preparation.cos + pair, factors);
#pragma unroll
  for (int i = 0; i < 8; ++i) own.value[i] = own.value[i] * factors[i] + partner[i];
  return own;
}

}  // namespace mesh::engine::cuda
