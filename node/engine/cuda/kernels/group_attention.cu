#include <algorithm>

#include "node/engine/cuda/kernels/device.cuh"
#include "node/engine/cuda/kernels/head_rows.cuh"
#include "node/engine/cuda/kernels/launch.cuh"
#include "node/engine/cuda/kernels/split_sums.cuh"

// Attention of single rows on tensor cores: up to eight query heads of a KV head are the columns of a product
// with 16 keys at a time. A lane's 16-byte pieces of keys and values enter the products as they lie in
// memory, in an order of their own: which dimension is which does not matter to q·k, and the sums of p·v are
// put back in place. Keys are split over blocks and warps.
namespace mesh::engine::cuda {
namespace {

constexpr int kKeys = 16, kColumns = 8;

/// Transposes an 8 × 8 tile of bfloat16: lane 4·g + t holds columns 2·t and 2·t + 1 of row g.
__device__ std::uint32_t transposed(std::uint32_t tile) {
#if __CUDA_ARCH__ >= 800
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(tile));
#endif
  return tile;
}
__device__ std::uint32_t word(const uint4& piece, int index) {
  return index == 0 ? piece.x : index == 1 ? piece.y : index == 2 ? piece.z : piece.w;
}

template <int kDim>
struct Group {
  static constexpr int kParts = kDim / 32, kHalves = kDim > 64 ? 2 : 1;
  static constexpr int kStride = kDim == 32 ? 32 : kDim + 32;  // of queries: two rows lie in different banks

  struct Keys {
    uint4 key[2 * kParts];     // of keys g and g + 8, dimensions 32·part + 8·t …
    uint4 value[4 * kHalves];  // of keys 2·t, 2·t + 1, 2·t + 8, 2·t + 9, dimensions 64·half + 8·g …
  };
  const KvPlace cache;
  const Bf* const queries;  // [kColumns, kStride] in shared memory, then the row's own key and value
  const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;

  float sums[8][4] = {};  // dimension 8·g + i (i: first index) and 64 more of heads 2·t, 2·t + 1
  float best[2] = {-1e30f, -1e30f}, mass[2] = {0, 0};

  __device__ const Bf* own_key() const { return queries + kColumns * kStride; }
  __device__ const Bf* own_value() const { return own_key() + kDim; }
  __device__ static int value_row(int t, int j) { return 2 * t + j % 2 + j / 2 * 8; }

  /// Positions first … first + 15, which lie within one block, none from `last` on (first, if there is none).
  __device__ void load_keys(int first, int last, Keys& keys) const {
    const Bf* base = cache.row(first) + t * 8;
    const int most = max(last - 1 - first, 0);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      keys.key[2 * part] = *reinterpret_cast<const uint4*>(base + min(g, most) * kDim + part * 32);
      keys.key[2 * part + 1] = *reinterpret_cast<const uint4*>(base + min(g + 8, most) * kDim + part * 32);
    }
  }
  __device__ void load_values(int first, int last, Keys& keys) const {
    const Bf* base = cache.row(first) + cache.values_offset() + g % (kDim / 8) * 8;
    const int most = max(last - 1 - first, 0);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        keys.value[4 * half + j] =
            *reinterpret_cast<const uint4*>(base + min(value_row(t, j), most) * kDim + half * 64);
      }
    }
  }
  /// The row's own key and value come from shared memory; what lies behind them counts as zeros.
  __device__ void put_own(int first, int place, Keys& keys) const {
#pragma unroll
    for (int i = 0; i < 2 * kParts; ++i) {
      if (first + g + i % 2 * 8 == place)
        keys.key[i] = *reinterpret_cast<const uint4*>(own_key() + i / 2 * 32 + t * 8);
    }
#pragma unroll
    for (int i = 0; i < 4 * kHalves; ++i) {
      const int position = first + value_row(t, i % 4);
      if (position == place)
        keys.value[i] = *reinterpret_cast<const uint4*>(own_value() + i / 4 * 64 + g % (kDim / 8) * 8);
      if (position > place) keys.value[i] = make_uint4(0, 0, 0, 0);
    }
  }

  /// Scores of keys g (0, 1) and g + 8 (2, 3), heads 2·t and 2·t + 1, as powers of two once they are weights.
  __device__ void score(const Keys& keys, int width, int first, int low, int place, float factor,
                        float (&scores)[4]) const {
    float more[4] = {};
    const int own = min(g, width - 1) * kStride + t * 8;  // a column more than heads repeats the last one
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint4 q = *reinterpret_cast<const uint4*>(queries + own + part * 32);
      const uint4 &a = keys.key[2 * part], &b = keys.key[2 * part + 1];
      multiply(scores, a.x, b.x, a.y, b.y, q.x, q.y);
      multiply(more, a.z, b.z, a.w, b.w, q.z, q.w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = first + g + i / 2 * 8;
      scores[i] = position < low || position > place ? -INFINITY : (scores[i] + more[i]) * factor;
    }
  }
  __device__ void weigh(float (&scores)[4]) {
    float raised[2] = {fmaxf(scores[0], scores[2]), fmaxf(scores[1], scores[3])};
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      raised[0] = fmaxf(raised[0], __shfl_xor_sync(~0u, raised[0], offset));
      raised[1] = fmaxf(raised[1], __shfl_xor_sync(~0u, raised[1], offset));
    }
    if (__any_sync(~0u, raised[0] > best[0] || raised[1] > best[1])) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        raised[h] = fmaxf(raised[h], best[h]);
        const float scale = exp2f(best[h] - raised[h]);
        best[h] = raised[h];
        mass[h] *= scale;
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i][h] *= scale, sums[i][2 + h] *= scale;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[i] = exp2f(scores[i] - best[i % 2]);
      mass[i % 2] += scores[i];
    }
  }
  __device__ void add_values(const Keys& keys, const float (&weights)[4]) {
    const std::uint32_t low = transposed(narrow(weights[0], weights[1]));
    const std::uint32_t high = transposed(narrow(weights[2], weights[3]));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto pair = [&](int at) {  // the i-th dimension of two neighbouring keys
        return __byte_perm(word(keys.value[at], i / 2), word(keys.value[at + 1], i / 2),
                           i % 2 == 0 ? 0x5410 : 0x7632);
      };
      if constexpr (kHalves == 2) {
        multiply(sums[i], pair(0), pair(4), pair(2), pair(6), low, high);
      } else {
        multiply(sums[i], pair(0), 0, pair(2), 0, low, high);
      }
    }
  }
  /// This warp's sums, as a SplitPart<kDim, width>.
  __device__ void put(float* to, int width) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) mass[h] += __shfl_xor_sync(~0u, mass[h], offset);
      const int head = 2 * t + h;
      if (head >= width) continue;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if (g >= kDim / 8) continue;
        float2* const at = reinterpret_cast<float2*>(to + head * kDim + half * 64 + g * 8);
        const int c = half * 2 + h;
#pragma unroll
        for (int i = 0; i < 4; ++i) at[i] = make_float2(sums[2 * i][c], sums[2 * i + 1][c]);
      }
      if (g == 0) to[width * kDim + head] = best[h], to[width * (kDim + 1) + head] = mass[h];
    }
  }
};

/// A block for each of `parts`: rows × KV heads × groups of their heads × splits.
template <int kDim, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, 16 / kWarps)
    attend_groups(const StepTables tables, const AttentionRows attention, const Bf* q, Bf* out, int splits,
                  int parts, const SplitScratch scratch) {
  using Work = Group<kDim>;
  constexpr int kLanes = kDim / 8, kThreads = kWarps * 32;
  extern __shared__ float sums[];
  __shared__ uint4 queries[(kColumns * Work::kStride + 2 * kDim) / 8];
  let_next_launch_begin();
  if (static_cast<int>(blockIdx.x) >= parts) return wait_for_previous_launch();  // has kept a place
  const int per_kv = attention.heads / attention.kv.kv_heads, width = min(per_kv, kColumns);
  const int groups = (per_kv + kColumns - 1) / kColumns, of_row = attention.kv.kv_heads * groups;
  const int split = static_cast<int>(blockIdx.x) % splits, head_group = static_cast<int>(blockIdx.x) / splits;
  const int row = head_group / of_row, kv_head = head_group % of_row / groups, group = head_group % groups;
  const int warp = static_cast<int>(threadIdx.x) / 32, place = tables.place[row];
  Work work{{tables, attention.kv, tables.first_block[row], kv_head}, reinterpret_cast<const Bf*>(queries)};

  const int low = attention.window > 0 ? max(0, place + 1 - attention.window) : 0;
  const int base = low / kKeys * kKeys, span = place + 1 - base;
  const int share = (span + splits * kKeys - 1) / (splits * kKeys) * kKeys;
  const int used = place < 0 ? 0 : (span + share - 1) / share;  // blocks with keys
  const int begin = base + split * share, end = min(place + 1, begin + share);
  const bool present = split < used, appends = q == nullptr;
  // Nothing in this step writes keys before `place`, unless append_rows did.
  const int stored = appends ? place : place + 1;
  typename Work::Keys keys;
  int at = begin + warp * kKeys;
  const auto begin_loads = [&] {
    if (at < end) work.load_keys(at, stored, keys), work.load_values(at, stored, keys);
  };
  if (appends && present) begin_loads();
  wait_for_previous_launch();
  if (place < 0 && split == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < width * kDim; i += kThreads) {
      const int inside = group * width + i / kDim;
      const std::int64_t head = std::int64_t{row} * attention.heads + kv_head * per_kv + inside;
      if (inside < per_kv) out[head * kDim + i % kDim] = __float2bfloat16(0);
    }
  }
  if (!present) return;
  if (!appends) begin_loads();

  // Queries, and the row's own key and value, to shared memory. Whole warps go on together.
  Bf* const prepared = reinterpret_cast<Bf*>(queries);
  const bool owner = appends && split == used - 1;
  const int entries = width + (owner ? 2 : 0);
  for (int i = static_cast<int>(threadIdx.x); i / 32 * 32 < entries * kLanes; i += kThreads) {
    const int entry = min(i / kLanes, entries - 1), lane = i % kLanes;
    const int inside = min(group * width + entry, per_kv - 1);
    const int head = entry == width       ? attention.heads + kv_head
                     : entry == width + 1 ? attention.heads + attention.kv.kv_heads + kv_head
                                          : kv_head * per_kv + inside;
    uint4 piece;
    if (appends) {
      piece = read_head<kDim>(attention, row, head, lane).packed();
    } else {
      piece = __ldcg(reinterpret_cast<const uint4*>(q + (std::int64_t{row} * attention.heads + head) * kDim) +
                     lane);
    }
    Bf* const to = entry < width ? prepared + entry * Work::kStride
                                 : prepared + kColumns * Work::kStride + (entry - width) * kDim;
    if (i >= entries * kLanes) continue;
    *reinterpret_cast<uint4*>(to + lane * 8) = piece;
    if (entry >= width && group == 0) {
      Bf* const kept = work.cache.row(place) + (entry == width ? 0 : work.cache.values_offset());
      *reinterpret_cast<uint4*>(kept + lane * 8) = piece;
    }
  }
  __syncthreads();
  const float factor = attention.scale * 1.4426950408889634f;  // log2(e): weights are powers of two
  for (; at < end; at += kWarps * kKeys) {
    const int next = at + kWarps * kKeys;
    if (appends && place < at + kKeys) work.put_own(at, place, keys);
    float scores[4] = {};
    work.score(keys, width, at, low, place, factor, scores);
    if (next < end) work.load_keys(next, stored, keys);
    work.weigh(scores);
    work.add_values(keys, scores);
    if (next < end) work.load_values(next, stored, keys);
  }
  work.put(sums + warp * width * (kDim + 2), width);
  __syncthreads();
  finish_splits<kDim, kColumns, kWarps>(sums, width, attention, {row, kv_head, group, split}, splits, used,
                                        scratch, out);
}

template <int kDim, int kWarps>
cudaError_t launch_warps(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                         const void* q, void* out, int parts, int splits, const SplitScratch& scratch) {
  const int width = std::min(attention.heads / attention.kv.kv_heads, kColumns);
  const std::size_t shared = static_cast<std::size_t>(kWarps * width * (kDim + 2)) * sizeof(float);
  const int blocks = launch.halves ? std::max(parts, launch.processors) : parts;
  return enqueue(launch, attend_groups<kDim, kWarps>, dim3(static_cast<unsigned>(blocks)), kWarps * 32,
                 shared, tables, attention, static_cast<const Bf*>(q), static_cast<Bf*>(out), splits, parts,
                 scratch);
}

template <int kDim>
cudaError_t launch_dim(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                       const void* q, void* out, int parts, int splits, const SplitScratch& scratch) {
  const auto launch_it = parts <= launch.processors && !launch.halves ? launch_warps<kDim, 16>
                         : parts <= 2 * launch.processors             ? launch_warps<kDim, 8>
                                                                      : launch_warps<kDim, 4>;
  return launch_it(launch, tables, attention, q, out, parts, splits, scratch);
}

}  // namespace

cudaError_t group_attention(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                            const void* q, void* out, int rows, int splits, const SplitScratch& scratch) {
  const int groups = (attention.heads / attention.kv.kv_heads + kColumns - 1) / kColumns;
  const int parts = rows * attention.kv.kv_heads * groups * splits;
  const auto launch_width = attention.kv.head_dim == 32   ? launch_dim<32>
                            : attention.kv.head_dim == 64 ? launch_dim<64>
                                                          : launch_dim<128>;
  return launch_width(launch, tables, attention, q, out, parts, splits, scratch);
}

}  // namespace mesh::engine::cuda
