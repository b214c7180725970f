#pragma once

#include "node/engine/cuda/kernels/device.cuh"

namespace mesh::engine::cuda {

/// Weighted values of some keys, for kHeads query heads: Σ 2^(score − best) · value and its Σ 2^(score −
/// best).
template <int kDim, int kHeads>
struct SplitPart {
  float sums[kHeads][kDim];
  float best[kHeads], mass[kHeads];
};

/// A block's share of attention: of query heads [group · width, (group + 1) · width) of a row's KV head, and
/// of its keys.
struct GroupPart {
  int row, kv_head, group, split;
};

/// Adds a block's warps' parts, each laid out as SplitPart<kDim, width>; if `used` blocks share the row, the
/// last of them to come adds the blocks' and writes the row's heads. All threads of the block call it, after
/// a barrier.
template <int kDim, int kMostWidth, int kWarps>
__device__ void finish_splits(const float* parts, int width, const AttentionRows& attention,
                              const GroupPart& part, int splits, int used, const SplitScratch& scratch,
                              Bf* out) {
  __shared__ bool last;
  const auto [row, kv_head, group, split] = part;
  const int heads = attention.heads, kv_heads = attention.kv.kv_heads, per_kv = heads / kv_heads;
  const int groups = (per_kv + width - 1) / width, size = width * (kDim + 2);
  const int slot = (row * kv_heads + kv_head) * groups + group;
  float* const all = scratch.sums + std::int64_t{slot} * splits * size;
  const auto best_at = [&](int h) { return width * kDim + h; };
  const auto mass_at = [&](int h) { return width * (kDim + 1) + h; };
  const auto write = [&](int i, float sum, float mass) {
    const int inside = group * width + i / kDim;
    if (inside >= per_kv) return;
    out[(std::int64_t{row} * heads + kv_head * per_kv + inside) * kDim + i % kDim] =
        __float2bfloat16(sum / mass);
  };
  for (int i = threadIdx.x; i < width * kDim; i += kWarps * 32) {
    const int h = i / kDim;
    float best = parts[best_at(h)], sum = 0, mass = 0;
#pragma unroll
    for (int w = 1; w < kWarps; ++w) best = fmaxf(best, parts[w * size + best_at(h)]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = exp2f(parts[w * size + best_at(h)] - best);
      sum += parts[w * size + i] * factor;
      mass += parts[w * size + mass_at(h)] * factor;
    }
    if (used == 1) {
      write(i, sum, mass);
    } else {
      float* const own = all + split * size;
      __stcg(own + i, sum);
      if (i % kDim == 0) __stcg(own + best_at(h), best), __stcg(own + mass_at(h), mass);
    }
  }
  if (used == 1) return;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(&scratch.counters[slot], 1u) + 1 == static_cast<unsigned>(used);
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  __shared__ float bests[kMostWidth][kMaxSplits], masses[kMostWidth][kMaxSplits];
  for (int i = static_cast<int>(threadIdx.x); i < width * used; i += kWarps * 32) {
    bests[i % width][i / width] = __ldcg(all + i / width * size + best_at(i % width));
    masses[i % width][i / width] = __ldcg(all + i / width * size + mass_at(i % width));
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < width * kDim; i += kWarps * 32) {
    const int h = i / kDim;
    float best = -1e30f, sum = 0, mass = 0;
    for (int s = 0; s < used; ++s) best = fmaxf(best, bests[h][s]);
    for (int first = 0; first < used; first += 8) {
      float eight[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) eight[k] = first + k < used ? __ldcg(all + (first + k) * size + i) : 0.0f;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int s = min(first + k, used - 1);
        const float factor = first + k < used ? exp2f(bests[h][s] - best) : 0.0f;
        sum += eight[k] * factor;
        mass += masses[h][s] * factor;
      }
    }
    write(i, sum, mass);
  }
  if (threadIdx.x == 0) scratch.counters[slot] = 0;
}

}  // namespace mesh::engine::cuda
