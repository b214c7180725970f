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

/// Adds a block's warps' parts; if `used` blocks share the row, the last of them to come adds the blocks' and
/// writes the row's heads. All threads of the block call it, after a barrier.
template <int kDim, int kHeads, int kWarps>
__device__ void finish_splits(const SplitPart<kDim, kHeads> (&parts)[kWarps], int heads, int per_kv,
                              int kv_head, int group, int groups, int row, int splits, int used,
                              const SplitScratch& scratch, Bf* out) {
  __shared__ bool last;
  const int slot = (row * static_cast<int>(gridDim.y) + kv_head * groups + group);
  auto* const all = reinterpret_cast<SplitPart<kDim, kHeads>*>(scratch.sums) + std::int64_t{slot} * splits;
  const auto write = [&](int i, float sum, float mass) {
    const int inside = group * kHeads + i / kDim;
    if (inside >= per_kv) return;
    out[(std::int64_t{row} * heads + kv_head * per_kv + inside) * kDim + i % kDim] =
        __float2bfloat16(sum / mass);
  };
  for (int i = threadIdx.x; i < kHeads * kDim; i += kWarps * 32) {
    const int h = i / kDim, d = i % kDim;
    float best = parts[0].best[h], sum = 0, mass = 0;
#pragma unroll
    for (int w = 1; w < kWarps; ++w) best = fmaxf(best, parts[w].best[h]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = exp2f(parts[w].best[h] - best);
      sum += parts[w].sums[h][d] * factor;
      mass += parts[w].mass[h] * factor;
    }
    if (used == 1) {
      write(i, sum, mass);
    } else {
      SplitPart<kDim, kHeads>& own = all[blockIdx.x];
      __stcg(&own.sums[h][d], sum);
      if (d == 0) __stcg(&own.best[h], best), __stcg(&own.mass[h], mass);
    }
  }
  if (used == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&scratch.counters[slot], 1u) + 1 == static_cast<unsigned>(used);
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int i = threadIdx.x; i < kHeads * kDim; i += kWarps * 32) {
    const int h = i / kDim, d = i % kDim;
    float best = -1e30f, sum = 0, mass = 0;
    for (int s = 0; s < used; ++s) best = fmaxf(best, __ldcg(&all[s].best[h]));
    for (int s = 0; s < used; ++s) {
      const float factor = exp2f(__ldcg(&all[s].best[h]) - best);
      sum += __ldcg(&all[s].sums[h][d]) * factor;
      mass += __ldcg(&all[s].mass[h]) * factor;
    }
    write(i, sum, mass);
  }
  if (threadIdx.x == 0) scratch.counters[slot] = 0;
}

}  // namespace mesh::engine::cuda
