#include <algorithm>

#include "node/engine/cuda/kernels/bulk_copies.cuh"
#include "node/engine/cuda/kernels/launch.cuh"
#include "node/engine/cuda/kernels/tiles.cuh"
#include "node/engine/cuda/kernels/wgmma.cuh"

// Attention of up to 64 rows of one segment on warpgroup products: two query heads of a KV head, a warpgroup
// each, over tiles of 64 keys in four places of shared memory, each brought by a warp of its own, softmax on
// the way (Dao 2023, FlashAttention-2). The blocks of a cluster share the keys and add their sums in a fixed
// order.
namespace mesh::engine::cuda {
namespace {

constexpr int kHeads = 2, kConsumers = kHeads * 128, kPlaces = 4, kThreads = kConsumers + kPlaces * 32,
              kKeys = 64, kHalfBytes = 64 * 128;

template <int kDim>
constexpr int kTileBytes = 64 * kDim * 2;
template <int kDim>
constexpr int kSumStride = kDim + 8;  // of a row's sums, then its largest score and its mass

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// Where 16 bytes of a 64-row tile lie: halves of 64 values, rows of 128 bytes, swizzled.
template <int kDim>
__device__ unsigned piece_at(unsigned tile, int row, int piece) {
  return tile + piece / 8 * kHalfBytes + row * 128 + ((piece ^ row) & 7) * 16;
}

__device__ void join_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

template <int kDim>
struct Rows {
  float sums[kDim / 2] = {};
  float best[2] = {-1e30f, -1e30f}, mass[2] = {0, 0};  // of rows g and g + 8 of the warp
  std::uint32_t weights[4][4];                         // of 16 keys each

  /// Scores become weights; sums of before must be multiplied by `scales`.
  __device__ void weigh(float (&scores)[32], float factor, float (&scales)[2]) {
    float raised[2] = {best[0], best[1]};
#pragma unroll
    for (int i = 0; i < 32; ++i) raised[i / 2 % 2] = fmaxf(raised[i / 2 % 2], scores[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      raised[r] = fmaxf(raised[r], __shfl_xor_sync(~0u, raised[r], 1));
      raised[r] = fmaxf(raised[r], __shfl_xor_sync(~0u, raised[r], 2));
      scales[r] = power_of_two((best[r] - raised[r]) * factor);
      best[r] = raised[r];
      mass[r] *= scales[r];
    }
    const float offset[2] = {best[0] * factor, best[1] * factor};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      scores[i] = power_of_two(scores[i] * factor - offset[i / 2 % 2]);
      mass[i / 2 % 2] += scores[i];
    }
  }
  /// Once the products before are done.
  __device__ void take(const float (&scores)[32], const float (&scales)[2]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) weights[i / 4][i % 4] = narrow(scores[2 * i], scores[2 * i + 1]);
    if (!__any_sync(~0u, scales[0] != 1 || scales[1] != 1)) return;
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) sums[i] *= scales[i / 2 % 2];
  }
  __device__ void begin_values(unsigned values) {
    const std::uint64_t rows = rows_descriptor(values, kHalfBytes);
    begin_products();
#pragma unroll
    for (int part = 0; part < 4; ++part) multiply_rows(sums, weights[part], rows + part * 128);
    end_products();
  }
  __device__ void finish_mass() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      mass[r] += __shfl_xor_sync(~0u, mass[r], 1);
      mass[r] += __shfl_xor_sync(~0u, mass[r], 2);
    }
  }
};

/// A row of a head: the sums of all blocks of the cluster, `kLanes` lanes with four values each.
template <int kDim>
__device__ uint2 joined_row(unsigned at, int lane, int splits, float factor) {
  float bests[kMostCluster], masses[kMostCluster], best = -INFINITY, mass = 0;
  float4 parts[kMostCluster], sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int s = 0; s < kMostCluster; ++s) {
    bests[s] = -INFINITY, masses[s] = 0, parts[s] = sum;
    if (s >= splits) continue;
    const float4 state = read_block(at + kDim * 4, static_cast<unsigned>(s));
    bests[s] = state.x, masses[s] = state.y;
    parts[s] = read_block(at + lane * 16, static_cast<unsigned>(s));
  }
#pragma unroll
  for (int s = 0; s < kMostCluster; ++s) best = fmaxf(best, bests[s]);
#pragma unroll
  for (int s = 0; s < kMostCluster; ++s) {
    const float scale = power_of_two((bests[s] - best) * factor);
    mass += masses[s] * scale;
    sum.x += parts[s].x * scale, sum.y += parts[s].y * scale;
    sum.z += parts[s].z * scale, sum.w += parts[s].w * scale;
  }
  return make_uint2(narrow(sum.x / mass, sum.y / mass), narrow(sum.z / mass, sum.w / mass));
}
#endif

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    attend_warpgroups(const StepTables tables, const AttentionRows attention, const Bf* q, Bf* out,
                      int splits) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kPieces = kDim / 8;
  extern __shared__ std::byte memory[];
  __shared__ std::uint64_t barriers[2 * kPlaces];
  const unsigned start = (shared_address(memory) + 1023) / 1024 * 1024;
  const int group = static_cast<int>(threadIdx.x) / 128, warp = static_cast<int>(threadIdx.x) / 32 % 4,
            lane = static_cast<int>(threadIdx.x) % 32;
  const auto queries = [&](int head) { return start + head * kTileBytes<kDim>; };
  const auto keys_at = [&](int place) { return start + (kHeads + place * 2) * kTileBytes<kDim>; };
  const auto full = [&](int place) { return shared_address(barriers) + place * 16; };
  const auto empty = [&](int place) { return shared_address(barriers) + place * 16 + 8; };
  const int per_kv = attention.heads / attention.kv.kv_heads, pairs = (per_kv + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.y) / pairs;
  const auto head_of = [&](int which) {
    return kv_head * per_kv + min(static_cast<int>(blockIdx.y) % pairs * kHeads + which, per_kv - 1);
  };
  const int heads = attention.heads, split = static_cast<int>(blockIdx.x) % splits;
  let_next_launch_begin();
  const Tile tile = tables.tiles[blockIdx.x / splits];
  const KvPlace cache{tables, attention.kv, tile.first_block, kv_head};
  if (threadIdx.x == 0) {
    for (int place = 0; place < kPlaces; ++place) {
      make_barrier(full(place), 32);
      make_barrier(empty(place), kConsumers / 32);
    }
    publish_barriers();
  }
  __syncthreads();

  const int last = tile.start + tile.rows;
  const int low = attention.window > 0 ? max(0, tile.start + 1 - attention.window) : 0;
  const int first_tile = low / kKeys, count = (last + kKeys - 1) / kKeys - first_tile;
  const int begin = first_tile + count * split / splits, end = first_tile + count * (split + 1) / splits;
  if (threadIdx.x >= kConsumers) {
    const int place = warp;
    for (int index = begin + place; index < end && tile.rows > 0; index += kPlaces) {
      const int round = (index - begin) / kPlaces;
      if ((index + 1) * kKeys > tile.stored) wait_for_previous_launch();  // those of earlier steps are there
      if (round > 0) wait_at(empty(place), static_cast<unsigned>(round + 1) & 1);
      const Bf* from = cache.row(index * kKeys);
#pragma unroll 8
      for (int i = lane; i < kKeys * kPieces; i += 32) {
        const int row = i / kPieces, piece = i % kPieces;
        const bool present = index * kKeys + row < last;
        const Bf* key = from + i * 8;
        const unsigned to = piece_at<kDim>(keys_at(place), row, piece);
        copy_16(to, key, present);
        copy_16(to + kTileBytes<kDim>, key + cache.values_offset(), present);
      }
      commit_copies();
      wait_for_copies<0>();
      show_to_products();
      arrive_at(full(place));
    }
    return;
  }
  wait_for_previous_launch();
  if (tile.rows == 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * kTileRows * kPieces; i += kConsumers) {
    const int head = i / (kTileRows * kPieces), row = i / kPieces % kTileRows, piece = i % kPieces;
    const std::int64_t from = std::int64_t{tile.first_row + min(row, tile.rows - 1)} * heads + head_of(head);
    copy_16(piece_at<kDim>(queries(head), row, piece), q + from * kDim + piece * 8, row < tile.rows);
  }
  commit_copies();
  wait_for_copies<0>();
  show_to_products();
  join_consumers();

  Rows<kDim> work;
  const float factor = attention.scale * 1.4426950408889634f;  // log2(e): weights are powers of two
  const int position = tile.start + warp * 16 + lane / 4;      // of rows 0 … 7; the others are 8 further
  float scores[32], scales[2];
  const auto begin_scores = [&](int index) {
    const int place = (index - begin) % kPlaces;
    wait_at(full(place), static_cast<unsigned>((index - begin) / kPlaces) & 1);
#pragma unroll
    for (int i = 0; i < 32; ++i) scores[i] = 0;
    const std::uint64_t a = tile_descriptor(queries(group)), b = tile_descriptor(keys_at(place));
    begin_products();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const int at = k / 4 * (kHalfBytes / 16) + k % 4 * 2;
      multiply_tiles(scores, a + at, b + at);
    }
    end_products();
  };
  const auto begin_values = [&](int index) {
    work.begin_values(keys_at((index - begin) % kPlaces) + kTileBytes<kDim>);
  };
  const auto hide = [&](int index) {
    if ((index + 1) * kKeys <= tile.start + warp * 16 + 1 && attention.window == 0) return;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int key = index * kKeys + i / 4 * 8 + lane % 4 * 2 + i % 2, own = position + i / 2 % 2 * 8;
      if (key > own || (attention.window > 0 && key <= own - attention.window)) scores[i] = -INFINITY;
    }
  };
  if (begin < end) {
    begin_scores(begin);
    wait_for_products<0>();
    hide(begin);
    work.weigh(scores, factor, scales);
    work.take(scores, scales);
  }
  for (int index = begin; index + 1 < end; ++index) {  // the next tile's scores while values are added
    begin_scores(index + 1);
    begin_values(index);
    wait_for_products<1>();
    hide(index + 1);
    work.weigh(scores, factor, scales);
#pragma unroll
    for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(scores[i]));  // not only after the values
    wait_for_products<0>();
    if (lane == 0) arrive_at(empty((index - begin) % kPlaces));
    work.take(scores, scales);
  }
  if (begin < end) {
    begin_values(end - 1);
    wait_for_products<0>();
  }
  work.finish_mass();

  const bool counted = group == 0 || head_of(1) != head_of(0);
  if (splits == 1) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp * 16 + lane / 4 + r * 8;
      if (row >= tile.rows || !counted) continue;
      Bf* const to =
          out + (std::int64_t{tile.first_row + row} * heads + head_of(group)) * kDim + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) {
        *reinterpret_cast<std::uint32_t*>(to + i * 8) =
            narrow(work.sums[4 * i + 2 * r] / work.mass[r], work.sums[4 * i + 2 * r + 1] / work.mass[r]);
      }
    }
    return;
  }
  join_consumers();  // nobody multiplies any more
  float* const sums = reinterpret_cast<float*>(memory + (start - shared_address(memory)));
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float* const to = sums + (group * kTileRows + warp * 16 + lane / 4 + r * 8) * kSumStride<kDim>;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      *reinterpret_cast<float2*>(to + i * 8 + lane % 4 * 2) =
          make_float2(work.sums[4 * i + 2 * r], work.sums[4 * i + 2 * r + 1]);
    }
    if (lane % 4 == 0) *reinterpret_cast<float4*>(to + kDim) = make_float4(work.best[r], work.mass[r], 0, 0);
  }
  join_cluster();
  constexpr int kLanes = kDim / 4;
  const int rows = kHeads * tile.rows, until = rows * (split + 1) / splits;
  for (int i = rows * split / splits + static_cast<int>(threadIdx.x) / kLanes; i < until;
       i += kConsumers / kLanes) {
    const int head = i / tile.rows, row = i % tile.rows, own = static_cast<int>(threadIdx.x) % kLanes;
    if (head == 1 && head_of(1) == head_of(0)) continue;
    const uint2 value =
        joined_row<kDim>(start + (head * kTileRows + row) * kSumStride<kDim> * 4, own, splits, factor);
    *reinterpret_cast<uint2*>(out + (std::int64_t{tile.first_row + row} * heads + head_of(head)) * kDim +
                              own * 4) = value;
  }
  join_cluster();  // others may still read our sums
#endif
}

template <int kDim>
cudaError_t launch_warpgroups(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                              const void* q, void* out, int tiles, int splits) {
  const int pairs = (attention.heads / attention.kv.kv_heads + kHeads - 1) / kHeads;
  const dim3 grid(static_cast<unsigned>(tiles * splits),
                  static_cast<unsigned>(attention.kv.kv_heads * pairs));
  return enqueue_clusters(launch, attend_warpgroups<kDim>, grid, kThreads,
                          static_cast<std::size_t>(kHeads + 2 * kPlaces) * kTileBytes<kDim> + 1024,
                          static_cast<unsigned>(splits), tables, attention, static_cast<const Bf*>(q),
                          static_cast<Bf*>(out), splits);
}

}  // namespace

cudaError_t warpgroup_attention(const Launch& launch, const StepTables& tables,
                                const AttentionRows& attention, const void* q, void* out, int tiles,
                                int splits) {
  if (attention.kv.head_dim < 64 || splits > kMostCluster) return cudaErrorInvalidValue;
  const auto launch_width = attention.kv.head_dim == 64 ? launch_warpgroups<64> : launch_warpgroups<128>;
  return launch_width(launch, tables, attention, q, out, tiles, splits);
}

}  // namespace mesh::engine::cuda
