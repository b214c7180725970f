#include "node/engine/cuda/kernels/device.cuh"
#include "node/engine/cuda/kernels/launch.cuh"
#include "node/engine/cuda/kernels/tiles.cuh"

// Attention of up to 64 rows of one segment and one query head on the tensor cores: four warps of 16 rows,
// keys and values in tiles of 64 through shared memory (two of them in turn), softmax on the way (Dao 2023,
// FlashAttention-2).
namespace mesh::engine::cuda {
namespace {

constexpr int kWarps = 4, kKeys = 64;

/// A tile of rows of kDim values; 16-byte pieces are exchanged within a row so that eight rows' equal pieces
/// lie in different banks.
template <int kDim>
struct SharedTile {
  Bf* data;
  __device__ Bf* piece(int row, int index) const {
    constexpr int kMask = kDim / 8 >= 8 ? 7 : kDim / 8 - 1;
    const int turn = kDim / 8 >= 8 ? row : row / 2;  // two rows of 32 values fill all banks
    return data + row * kDim + ((index ^ (turn & kMask)) * 8);
  }
};

template <int kDim>
__global__ void __launch_bounds__(kWarps * 32)
    attend_tiles(const StepTables tables, const AttentionRows attention, const Bf* q, Bf* out, int splits,
                 float* partial, int rows) {
#if __CUDA_ARCH__ >= 800
  constexpr int kPieces = kDim / 8, kSlices = kDim / 16, kValues = kDim / 8;
  extern __shared__ uint4 shared[];
  Bf* const memory = reinterpret_cast<Bf*>(shared);
  const auto key_tile = [&](int index) { return SharedTile<kDim>{memory + index % 2 * 2 * kKeys * kDim}; };
  const SharedTile<kDim> queries{memory + 4 * kKeys * kDim};
  const auto value_tile = [&](int index) { return SharedTile<kDim>{key_tile(index).data + kKeys * kDim}; };
  const int head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int heads = attention.heads;
  let_next_launch_begin();
  const Tile tile = tables.tiles[blockIdx.x];
  const KvPlace cache{tables, attention.kv, tile.first_block, head / (heads / attention.kv.kv_heads)};
  wait_for_previous_launch();
  if (tile.rows == 0) return;

  const int last = tile.start + tile.rows;
  const int low = attention.window > 0 ? max(0, tile.start + 1 - attention.window) : 0;
  const int first_tile = low / kKeys, count = (last + kKeys - 1) / kKeys - first_tile;
  const int share = (count + splits - 1) / splits;
  const int begin = first_tile + static_cast<int>(blockIdx.z) * share;
  const int end = min(first_tile + count, begin + share);
  const auto fetch = [&](int index) {
    const Bf* from = cache.row(index * kKeys);
    for (int i = threadIdx.x; i < kKeys * kPieces; i += kWarps * 32) {
      const int row = i / kPieces, piece = i % kPieces;
      const bool present = index * kKeys + row < last;
      const Bf* key = from + row * kDim + piece * 8;
      copy_16(key_tile(index).piece(row, piece), key, present);
      copy_16(value_tile(index).piece(row, piece), key + cache.values_offset(), present);
    }
  };
  if (begin < end) fetch(begin);
  commit_copies();

  for (int i = threadIdx.x; i < kTileRows * kPieces; i += kWarps * 32) {
    const int row = i / kPieces, index = i % kPieces;
    uint4 value = make_uint4(0, 0, 0, 0);
    if (row < tile.rows) {
      value = __ldcg(reinterpret_cast<const uint4*>(
          q + (std::int64_t{tile.first_row + row} * heads + head) * kDim + index * 8));
    }
    *reinterpret_cast<uint4*>(queries.piece(row, index)) = value;
  }
  __syncthreads();
  std::uint32_t query[kSlices][4];
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) {
    load_matrices<false>(query[slice], queries.piece(warp * 16 + lane % 16, slice * 2 + lane / 16));
  }
  __syncthreads();

  float sums[kValues][4] = {};
  float best[2] = {-1e30f, -1e30f}, mass[2] = {0, 0};
  const float factor = attention.scale * 1.4426950408889634f;
  const int position = tile.start + warp * 16 + lane / 4;  // of rows 0 … 7; the others are 8 further
  for (int index = begin; index < end; ++index) {
    if (index + 1 < end) fetch(index + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const SharedTile<kDim> keys = key_tile(index), values = value_tile(index);
    float scores[kKeys / 8][4] = {};
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int pair = 0; pair < kKeys / 16; ++pair) {
        std::uint32_t k[4];  // keys 0 … 7 of the pair: words 0, 1; keys 8 … 15: words 2, 3
        load_matrices<false>(k, keys.piece(pair * 16 + lane % 8 + lane / 16 * 8, slice * 2 + lane / 8 % 2));
        const auto& a = query[slice];
        multiply(scores[pair * 2], a[0], a[1], a[2], a[3], k[0], k[1]);
        multiply(scores[pair * 2 + 1], a[0], a[1], a[2], a[3], k[2], k[3]);
      }
    }
    const bool partly = (index + 1) * kKeys > tile.start + warp * 16 + 1 || attention.window > 0;
    float raised[2] = {best[0], best[1]};
    if (partly) {
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int key = index * kKeys + i * 8 + lane % 4 * 2 + c % 2, own = position + c / 2 * 8;
          const bool seen = key <= own && (attention.window == 0 || key > own - attention.window);
          if (!seen) scores[i][c] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) raised[c / 2] = fmaxf(raised[c / 2], scores[i][c]);
    }
    float offset[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      raised[r] = fmaxf(raised[r], __shfl_xor_sync(~0u, raised[r], 1));
      raised[r] = fmaxf(raised[r], __shfl_xor_sync(~0u, raised[r], 2));
    }
    if (__any_sync(~0u, raised[0] > best[0] || raised[1] > best[1])) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float scale = power_of_two((best[r] - raised[r]) * factor);
        best[r] = raised[r];
        mass[r] *= scale;
#pragma unroll
        for (int i = 0; i < kValues; ++i) sums[i][2 * r] *= scale, sums[i][2 * r + 1] *= scale;
      }
    }
    offset[0] = best[0] * factor, offset[1] = best[1] * factor;
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[i][c] = power_of_two(scores[i][c] * factor - offset[c / 2]);
        mass[c / 2] += scores[i][c];
      }
    }
#pragma unroll
    for (int part = 0; part < kKeys / 16; ++part) {  // 16 keys
      const std::uint32_t a[4] = {narrow(scores[2 * part][0], scores[2 * part][1]),
                                  narrow(scores[2 * part][2], scores[2 * part][3]),
                                  narrow(scores[2 * part + 1][0], scores[2 * part + 1][1]),
                                  narrow(scores[2 * part + 1][2], scores[2 * part + 1][3])};
#pragma unroll
      for (int pair = 0; pair < kValues / 2; ++pair) {
        std::uint32_t v[4];  // values 0 … 7 of the pair: words 0, 1; values 8 … 15: words 2, 3
        load_matrices<true>(v, values.piece(part * 16 + lane % 16, pair * 2 + lane / 16));
        multiply(sums[2 * pair], a[0], a[1], a[2], a[3], v[0], v[1]);
        multiply(sums[2 * pair + 1], a[0], a[1], a[2], a[3], v[2], v[3]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    mass[r] += __shfl_xor_sync(~0u, mass[r], 1);
    mass[r] += __shfl_xor_sync(~0u, mass[r], 2);
    const int row = warp * 16 + lane / 4 + r * 8;
    if (row >= tile.rows) continue;
    const std::int64_t at = std::int64_t{tile.first_row + row} * heads + head;
    if (splits == 1) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        *reinterpret_cast<std::uint32_t*>(out + at * kDim + i * 8 + lane % 4 * 2) =
            narrow(sums[i][2 * r] / mass[r], sums[i][2 * r + 1] / mass[r]);
      }
    } else {
      float* const to = partial + (blockIdx.z * std::int64_t{rows} * heads + at) * (kDim + 2);
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        *reinterpret_cast<float2*>(to + i * 8 + lane % 4 * 2) =
            make_float2(sums[i][2 * r], sums[i][2 * r + 1]);
      }
      if (lane % 4 == 0) *reinterpret_cast<float2*>(to + kDim) = make_float2(best[r] * factor, mass[r]);
    }
  }
#endif
}

/// One warp a row and head.
template <int kDim>
__global__ void join_splits(const StepTables tables, const float* partial, Bf* out, int rows, int heads,
                            int splits) {
  wait_for_previous_launch();
  let_next_launch_begin();
  const std::int64_t at = std::int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (at >= std::int64_t{rows} * heads || tables.place[at / heads] < 0) return;
  const auto part = [&](int split) {
    return partial + (std::int64_t{split} * rows * heads + at) * (kDim + 2);
  };
  float best = -INFINITY, mass = 0, sums[kDim / 32] = {};
  for (int s = 0; s < splits; ++s) best = fmaxf(best, __ldcg(part(s) + kDim));
  for (int s = 0; s < splits; ++s) {
    const float factor = exp2f(__ldcg(part(s) + kDim) - best);
    mass += __ldcg(part(s) + kDim + 1) * factor;
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) sums[i] += __ldcg(part(s) + i * 32 + lane) * factor;
  }
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) out[at * kDim + i * 32 + lane] = __float2bfloat16(sums[i] / mass);
}

template <int kDim>
cudaError_t launch_tiles(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                         const void* q, void* out, int tiles, int rows, int splits, float* partial) {
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(attention.heads),
                  static_cast<unsigned>(splits));
  const cudaError_t error =
      enqueue(launch, attend_tiles<kDim>, grid, kWarps * 32, (4 * kKeys + kTileRows) * kDim * sizeof(Bf),
              tables, attention, static_cast<const Bf*>(q), static_cast<Bf*>(out), splits, partial, rows);
  if (error != cudaSuccess || splits == 1) return error;
  return enqueue(launch, join_splits<kDim>, dim3(static_cast<unsigned>((rows * attention.heads + 7) / 8)),
                 256, 0, tables, partial, static_cast<Bf*>(out), rows, attention.heads, splits);
}

}  // namespace

cudaError_t tile_attention(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                           const void* q, void* out, int tiles, int rows, int splits,
                           const SplitScratch& scratch) {
  const auto launch_width = attention.kv.head_dim == 32   ? launch_tiles<32>
                            : attention.kv.head_dim == 64 ? launch_tiles<64>
                                                          : launch_tiles<128>;
  return launch_width(launch, tables, attention, q, out, tiles, rows, splits, scratch.sums);
}

}  // namespace mesh::engine::cuda
