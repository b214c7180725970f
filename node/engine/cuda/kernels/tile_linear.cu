#include "node/engine/cuda/kernels/tile_linear.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "node/engine/cuda/kernels/launch.cuh"
#include "node/engine/cuda/kernels/tile_heads.cuh"

// Which tiles: as many as there are multiprocessors, or a little less than a multiple. Blocks go through the
// inputs in step, so that L2 sends once what several of them read; above 128 rows two blocks share the copies
// of their outputs' part of the matrix besides.
namespace mesh::engine::cuda {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
struct NoHeads {
  __device__ NoHeads(const TileProduct&, int) {}
};
template <class Shape>
using Heads = std::conditional_t<Shape::kStore == TileStore::kHeads, TileHeads<Shape>, NoHeads>;
#endif

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    multiply_rows(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap rows,
                  const TileProduct product) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte memory[];
  __shared__ std::uint64_t barriers[2 * Shape::kStages];
  TileStages<Shape> stages{(shared_address(memory) + 1023) / 1024 * 1024, shared_address(barriers)};
  const int rank = static_cast<int>(blockIdx.x) % Shape::kCluster,
            first_turn = static_cast<int>(blockIdx.x) / Shape::kCluster,
            step = static_cast<int>(gridDim.x) / Shape::kCluster;
  if (threadIdx.x == Shape::kAsker)
    make_stage_barriers<Shape>(stages.barriers, Shape::kCluster * Shape::kGroups * 4);
  if constexpr (Shape::kCluster > 1) join_cluster();
  __syncthreads();
  let_next_launch_begin();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Heads<Shape> heads(product, lane);
  if (threadIdx.x == Shape::kAsker) {
    ask_for_tiles<Shape>(weights, rows, stages, product, first_turn, step, rank);
  } else {
    if constexpr (Shape::kStore == TileStore::kHeads) {
      const TileTurn<Shape> work(product, first_turn, rank);
      if (threadIdx.x < Shape::kAsker) heads.begin(work, work.row + warp * 16 + lane / 4);
    }
    wait_for_previous_launch();
  }
  if (threadIdx.x < Shape::kAsker) {
    float sums[Shape::kColumns / 2];
    for (int turn = first_turn; turn < product.turns(); turn += step) {
      const TileTurn<Shape> work(product, turn, rank);
      const int first_row = work.row + warp * 16 + lane / 4;
      if constexpr (Shape::kStore == TileStore::kHeads) {
        if (turn != first_turn) heads.begin(work, first_row);
      }
      multiply_tile<Shape>(sums, stages, work.pieces);
      if constexpr (Shape::kStore == TileStore::kHeads) {
        heads.store(sums);
      } else if constexpr (Shape::kGated) {
        store_gated<Shape>(sums, product, work, first_row, lane % 4 * 2);
      } else {
        store_sums<Shape>(sums, product, work, first_row, lane % 4 * 2);
      }
    }
  }
  if constexpr (Shape::kCluster > 1) join_cluster();  // the other one may still send to us
#endif
}

int over(int count, int size) {
  return (count + size - 1) / size;
}

template <class Shape>
cudaError_t launch_tiles(const Launch& launch, TileProduct product, const void* weight, const void* x) {
  CUtensorMap weights, rows;
  constexpr int kCluster = Shape::kCluster;
  product.box_rows = std::min(over(product.rows, 8) * 8, Shape::kRows);
  cudaError_t error = cudaSuccess;
  if constexpr (Shape::kStore == TileStore::kHeads) {
    const int half = product.attention.kv.head_dim / 2;
    error = describe(weights, weight, product.in, half, product.out / half, {Shape::kPairs, 2});
  } else if constexpr (Shape::kGated) {
    error = describe(weights, weight, product.in, product.out, 2, {Shape::kWidth, 2 / kCluster});
  } else {
    error = describe(weights, weight, product.in, product.out, 1, {Shape::kWidth / kCluster, 1});
  }
  if (error == cudaSuccess) error = describe(rows, x, product.in, product.rows, 1, {product.box_rows, 1});
  if (error != cudaSuccess) return error;
  product.row_tiles = over(product.rows, Shape::kRows * kCluster);
  product.output_tiles = over(product.out, Shape::kWidth);
  const int clusters = std::min(product.turns(), launch.processors / kCluster);
  return enqueue_clusters(launch, multiply_rows<Shape>, dim3(static_cast<unsigned>(clusters * kCluster)),
                          Shape::kThreads, std::size_t{Shape::kStages} * Shape::kStageBytes + 1024, kCluster,
                          weights, rows, product);
}

/// A tile's width and what the busiest multiprocessor brings with it: rows of the matrix and of x, over all
/// inputs.
struct Choice {
  int width = 0;
  double brought = 0;
};
Choice choose_width(const Launch& launch, int out, int rows, int parts) {
  Choice best;
  constexpr int kFew[] = {128, 48}, kMany[] = {256, 192};
  for (const int width : rows <= 128 ? kFew : kMany) {
    const int turns = over(out, width) * (rows <= 128 ? 1 : 2 * over(rows, 256)) * parts;
    const double brought =
        static_cast<double>(over(turns, launch.processors) * (width + std::min(rows, 128))) / parts;
    if (best.width == 0 || brought < best.brought) best = {width, brought};
  }
  return best;
}

template <TileStore kStore>
cudaError_t launch_width(const Launch& launch, const TileProduct& product, const void* weight,
                         const void* x) {
  const int width = choose_width(launch, product.out, product.rows, product.parts).width;
  const auto launch_shape =
      width == 256   ? launch_tiles<TileShape<2, 256, kStore>>
      : width == 192 ? launch_tiles<TileShape<2, 192, kStore>>
      : product.rows > 64
          ? (width == 128 ? launch_tiles<TileShape<2, 128, kStore>> : launch_tiles<TileShape<2, 48, kStore>>)
      : width == 128 ? launch_tiles<TileShape<1, 128, kStore>>
                     : launch_tiles<TileShape<1, 48, kStore>>;
  return launch_shape(launch, product, weight, x);
}

}  // namespace

int tile_parts(const Launch& launch, int out, int in, int rows, int most_rows) {
  const int most = std::min({kMostParts, most_rows / rows, in / (4 * kPieceInputs)});
  int best = 1;
  for (int parts = 2; parts <= most; ++parts) {
    if (choose_width(launch, out, rows, parts).brought < choose_width(launch, out, rows, best).brought)
      best = parts;
  }
  return best;
}

cudaError_t tile_linear(const Launch& launch, const TileLinear& linear) {
  if (linear.rows < 1 || linear.in % 8 != 0 || linear.out % 8 != 0 || linear.parts < 1 ||
      linear.parts > kMostParts || linear.parts > over(linear.in, kPieceInputs))
    return cudaErrorInvalidValue;
  TileProduct product;
  product.out = linear.out, product.in = linear.in, product.rows = linear.rows, product.parts = linear.parts;
  product.y = linear.y;
  return launch_width<TileStore::kSums>(launch, product, linear.weight, linear.x);
}

bool takes_heads(const AttentionRows& attention) {
  const int pairs = attention.preparation.pairs;
  return attention.preparation.query_norm == nullptr && 2 * pairs == attention.kv.head_dim &&
         (pairs == 16 || pairs == 32 || pairs == 64);
}

cudaError_t heads_linear(const Launch& launch, const HeadsLinear& linear) {
  if (linear.rows < 1 || linear.in % 8 != 0 || !takes_heads(linear.attention)) return cudaErrorInvalidValue;
  TileProduct product;
  product.out = (linear.attention.heads + 2 * linear.attention.kv.kv_heads) * linear.attention.kv.head_dim;
  product.in = linear.in, product.rows = linear.rows, product.y = linear.q;
  product.tables = linear.tables, product.attention = linear.attention;
  product.half_bits = std::countr_zero(static_cast<unsigned>(linear.attention.preparation.pairs));
  return launch_width<TileStore::kHeads>(launch, product, linear.weight, linear.x);
}

cudaError_t gated_tiles(const Launch& launch, const GatedLinear& linear) {
  using Few = TileShape<2, 2 * kGatedWidth, TileStore::kGated, 1>;
  using Many = TileShape<2, 2 * kGatedWidth, TileStore::kGated>;
  if (linear.rows < 1 || linear.in % 8 != 0 || linear.inner % 8 != 0) return cudaErrorInvalidValue;
  TileProduct product;
  product.out = linear.inner, product.in = linear.in, product.rows = linear.rows;
  product.bias = linear.bias, product.y = linear.y;
  if (linear.rows <= Few::kRows) return launch_tiles<Few>(launch, product, linear.weight, linear.x);
  return launch_tiles<Many>(launch, product, linear.weight, linear.x);
}

}  // namespace mesh::engine::cuda
