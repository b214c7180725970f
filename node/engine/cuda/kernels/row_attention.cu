#include <algorithm>

#include "node/engine/cuda/kernels/device.cuh"
#include "node/engine/cuda/kernels/head_rows.cuh"
#include "node/engine/cuda/kernels/launch.cuh"
#include "node/engine/cuda/kernels/split_sums.cuh"

// Attention of single rows, a few query heads of one KV head at a time, the keys split over blocks and warps.
// kDim / 8 lanes hold one key or value, so that a warp reads 32 · 16 bytes at a time; four such steps make a
// group, whose scores are added across lanes by halving: each lane ends with the scores of one query head.
namespace mesh::engine::cuda {
namespace {

constexpr int kWarps = 8, kSteps = 4;

template <int kDim, int kHeads, bool kAppends>
struct RowAttention {
  static constexpr int kLanes = kDim / 8, kAtOnce = 32 / kLanes;        // lanes of a key; keys of a step
  static constexpr int kKeys = kSteps * kAtOnce;                        // of a group
  static constexpr int kScores = kHeads * kSteps;                       // of one lane before adding
  static constexpr int kOwn = kScores > kLanes ? kScores / kLanes : 1;  // and after it
  static constexpr int kPerHead = kLanes / kHeads > 0 ? kLanes / kHeads : 1;  // lanes with one head's scores

  struct Keys {
    uint4 key[kSteps], value[kSteps];
  };

  const StepTables& tables;
  const AttentionRows& attention;
  float (&weights)[kWarps][kAtOnce][kSteps][kHeads];
  const KvPlace cache;
  const int row, kv_head, group;  // group: of query heads
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int member = lane % kLanes, which = lane / kLanes;

  float query[kHeads][8] = {};
  float sums[kHeads][8] = {};
  float best = -1e30f, mass = 0;  // of the head whose scores this lane has

  __device__ int head_of_lane() const { return member * kScores / kLanes / kSteps; }

  /// The keys, or the values, of a group of positions [first, last) that lies within one block of 128.
  __device__ void load(int first, int last, std::int64_t offset, uint4 (&to)[kSteps]) const {
    if (first >= last) return;
    const Bf* base = cache.row(first) + offset;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int key = min(step * kAtOnce + which, last - 1 - first);
      to[step] = *reinterpret_cast<const uint4*>(base + key * kDim + member * 8);
    }
  }

  /// Adds `kCount` sums over the lanes of a key; a lane hands over half of them at each step while it has
  /// several.
  template <int kOffset, int kCount>
  __device__ void add_across_lanes(float (&scores)[kScores]) const {
    if constexpr (kOffset > 0 && kCount > 1) {
      const bool upper = (member & kOffset) != 0;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        const float given = upper ? scores[i] : scores[i + kCount / 2];
        scores[i] = (upper ? scores[i + kCount / 2] : scores[i]) + __shfl_xor_sync(~0u, given, kOffset);
      }
      add_across_lanes<kOffset / 2, kCount / 2>(scores);
    } else if constexpr (kOffset > 0) {
      scores[0] += __shfl_xor_sync(~0u, scores[0], kOffset);
      add_across_lanes<kOffset / 2, 1>(scores);
    }
  }

  /// Takes keys [first, last) of a group of kKeys positions, those from `low` on; meanwhile the group at
  /// `next` comes.
  __device__ void take(Keys& keys, int first, int low, int last, int next) {
    float scores[kScores];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const std::uint32_t words[4] = {keys.key[step].x, keys.key[step].y, keys.key[step].z, keys.key[step].w};
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = widen(words[i]);
          sum += query[head][2 * i] * pair.x + query[head][2 * i + 1] * pair.y;
        }
        scores[head * kSteps + step] = sum;
      }
    }
    load(next, last, 0, keys.key);
    add_across_lanes<kLanes / 2, kScores>(scores);
    const int base = member * kScores / kLanes, head = head_of_lane();
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int position = first + (base + i) % kSteps * kAtOnce + which;
      if (position < low || position >= last) scores[i] = -INFINITY;
      most = fmaxf(most, scores[i]);
    }
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      if (offset < kPerHead || offset >= kLanes) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
    }
    const float raised = fmaxf(best, most), factor = exp2f(best - raised);
    if (__any_sync(~0u, raised > best)) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float scale = __shfl_sync(~0u, factor, h * kPerHead);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[h][i] *= scale;
      }
      best = raised;
      mass *= factor;
    }
    // Several lanes have the same score where there are more lanes than scores: one of them counts.
    const bool counts = kScores >= kLanes || member % (kLanes / (kScores < kLanes ? kScores : kLanes)) == 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float weight = exp2f(scores[i] - best);
      if (counts) mass += weight;
      weights[warp][which][(base + i) % kSteps][head] = weight;
    }
    __syncwarp();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const std::uint32_t words[4] = {keys.value[step].x, keys.value[step].y, keys.value[step].z,
                                      keys.value[step].w};
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float weight = weights[warp][which][step][h];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = widen(words[i]);
          sums[h][2 * i] += weight * pair.x;
          sums[h][2 * i + 1] += weight * pair.y;
        }
      }
    }
    load(next, last, cache.values_offset(), keys.value);
  }

  __device__ void read_queries(const Bf* q) {
    const int per_kv = attention.heads / attention.kv.kv_heads;
    const float factor = attention.scale * 1.4426950408889634f;  // log2(e): weights are powers of two
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int inside = min(group * kHeads + h, per_kv - 1), head = kv_head * per_kv + inside;
      if constexpr (kAppends) {
        const HeadRow<kDim> prepared = read_head<kDim>(attention, row, head, member);
#pragma unroll
        for (int i = 0; i < 8; ++i) query[h][i] = prepared.value[i] * factor;
      } else {
        const uint4 packed = __ldcg(reinterpret_cast<const uint4*>(
            q + (std::int64_t{row} * attention.heads + head) * kDim + member * 8));
        const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = widen(words[i]);
          query[h][2 * i] = pair.x * factor;
          query[h][2 * i + 1] = pair.y * factor;
        }
      }
    }
  }
  /// The row's own key and value, which nobody has stored yet.
  __device__ void append(int place) {
    const HeadRow<kDim> key = read_head<kDim>(attention, row, attention.heads + kv_head, member);
    const HeadRow<kDim> value =
        read_head<kDim>(attention, row, attention.heads + attention.kv.kv_heads + kv_head, member);
    Keys own{};
    own.key[0] = key.packed();
    own.value[0] = value.packed();
    if (which == 0 && group == 0) {
      Bf* to = cache.row(place) + member * 8;
      *reinterpret_cast<uint4*>(to) = own.key[0];
      *reinterpret_cast<uint4*>(to + cache.values_offset()) = own.value[0];
    }
    take(own, place, place, place + 1, place + 1);
  }
};

template <int kDim, int kHeads, bool kAppends>
__global__ void __launch_bounds__(kWarps * 32, 2)
    attend_rows(const StepTables tables, const AttentionRows attention, const Bf* q, Bf* out, int splits,
                const SplitScratch scratch) {
  using Work = RowAttention<kDim, kHeads, kAppends>;
  __shared__ float weights[kWarps][Work::kAtOnce][kSteps][kHeads];
  __shared__ SplitPart<kDim, kHeads> parts[kWarps];
  let_next_launch_begin();
  const int row = blockIdx.z, per_kv = attention.heads / attention.kv.kv_heads;
  const int groups = (per_kv + kHeads - 1) / kHeads;
  const int kv_head = blockIdx.y / groups, group = blockIdx.y % groups;
  const int place = tables.place[row];
  Work work{tables, attention, weights, {tables, attention.kv, tables.first_block[row], kv_head},
            row,    kv_head,   group};

  // This block's keys: groups stay within blocks of 128, since both start at multiples of kKeys.
  const int stored = kAppends ? place : place + 1;  // keys in the cache
  const int low = attention.window > 0 ? max(0, place + 1 - attention.window) : 0;
  const int base = low / Work::kKeys * Work::kKeys, span = place + 1 - base;
  const int share = (span + splits * Work::kKeys - 1) / (splits * Work::kKeys) * Work::kKeys;
  const int used = place < 0 ? 0 : (span + share - 1) / share;  // blocks with keys
  const int begin = base + static_cast<int>(blockIdx.x) * share, end = min(stored, begin + share);
  const bool present = static_cast<int>(blockIdx.x) < used;
  typename Work::Keys keys;
  int at = begin + work.warp * Work::kKeys;
  constexpr int kStride = kWarps * Work::kKeys;
  if (kAppends && present) {  // nothing in this step writes these
    work.load(at, end, 0, keys.key);
    work.load(at, end, work.cache.values_offset(), keys.value);
  }
  wait_for_previous_launch();
  if (place < 0 && blockIdx.x == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < kHeads * kDim; i += kWarps * 32) {
      const int inside = group * kHeads + i / kDim;
      const std::int64_t head = std::int64_t{row} * attention.heads + kv_head * per_kv + inside;
      if (inside < per_kv) out[head * kDim + i % kDim] = __float2bfloat16(0);
    }
  }
  if (!present) return;
  if (!kAppends) {
    work.load(at, end, 0, keys.key);
    work.load(at, end, work.cache.values_offset(), keys.value);
  }
  work.read_queries(q);
  for (; at < end; at += kStride) work.take(keys, at, low, end, at + kStride);
  if constexpr (kAppends) {
    if (static_cast<int>(blockIdx.x) == used - 1 && work.warp == 0) work.append(place);
  }

  // Lanes of a warp, then warps, then blocks; always in the same order.
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    if (offset < Work::kPerHead || offset >= Work::kLanes)
      work.mass += __shfl_xor_sync(~0u, work.mass, offset);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int offset = Work::kLanes; offset < 32; offset *= 2) {
        work.sums[h][i] += __shfl_xor_sync(~0u, work.sums[h][i], offset);
      }
      if (work.which == 0) parts[work.warp].sums[h][work.member * 8 + i] = work.sums[h][i];
    }
  }
  if (work.which == 0 && work.member % Work::kPerHead == 0 && work.member / Work::kPerHead < kHeads) {
    parts[work.warp].best[work.head_of_lane()] = work.best;
    parts[work.warp].mass[work.head_of_lane()] = work.mass;
  }
  __syncthreads();
  finish_splits<kDim, kHeads, kWarps>(&parts[0].sums[0][0], kHeads, attention,
                                      {row, kv_head, group, static_cast<int>(blockIdx.x)}, splits, used,
                                      scratch, out);
}

template <int kDim, int kHeads>
cudaError_t launch_rows(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                        const void* q, void* out, int rows, int splits, const SplitScratch& scratch) {
  const int per_kv = attention.heads / attention.kv.kv_heads;
  const int groups = (per_kv + kHeads - 1) / kHeads;
  const dim3 grid(static_cast<unsigned>(splits), static_cast<unsigned>(attention.kv.kv_heads * groups),
                  static_cast<unsigned>(rows));
  const auto kernel = q == nullptr ? attend_rows<kDim, kHeads, true> : attend_rows<kDim, kHeads, false>;
  return enqueue(launch, kernel, grid, kWarps * 32, 0, tables, attention, static_cast<const Bf*>(q),
                 static_cast<Bf*>(out), splits, scratch);
}

template <int kDim>
cudaError_t launch_dim(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                       const void* q, void* out, int rows, int splits, const SplitScratch& scratch) {
  const int per_kv = attention.heads / attention.kv.kv_heads;
  const auto launch_heads = per_kv == 1 ? launch_rows<kDim, 1> : launch_rows<kDim, 4>;
  return launch_heads(launch, tables, attention, q, out, rows, splits, scratch);
}

}  // namespace

std::size_t split_floats(int rows, int heads, int head_dim, int splits) {
  // A group of heads may be wider than what is left of a KV head's queries: up to four times as many.
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads) * 4 *
         static_cast<std::size_t>(head_dim + 2) * static_cast<std::size_t>(splits);
}

cudaError_t row_attention(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                          const void* q, void* out, int rows, int splits, const SplitScratch& scratch) {
  if (launch.tensor_cores) return group_attention(launch, tables, attention, q, out, rows, splits, scratch);
  const auto launch_width = attention.kv.head_dim == 32   ? launch_dim<32>
                            : attention.kv.head_dim == 64 ? launch_dim<64>
                                                          : launch_dim<128>;
  return launch_width(launch, tables, attention, q, out, rows, splits, scratch);
}

}  // namespace mesh::engine::cuda
