#include "node/engine/cuda/kernels/tile_linear.h"

#include <algorithm>

#include "node/engine/cuda/kernels/launch.cuh"
#include "node/engine/cuda/kernels/tile_products.cuh"

// Which tiles: as many as there are multiprocessors, or a little less than a multiple. Blocks go through the
// inputs in step, so that L2 sends once what several of them read; above 128 rows two blocks share the copies
// of their outputs' part of the matrix besides.
namespace mesh::engine::cuda {
namespace {

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
  if (threadIdx.x == Shape::kAsker) {
    ask_for_tiles<Shape>(weights, rows, stages, product, first_turn, step, rank);
  } else {
    wait_for_previous_launch();
  }
  if (threadIdx.x < Shape::kAsker) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float sums[Shape::kColumns / 2];
    for (int turn = first_turn; turn < product.turns(); turn += step) {
      const TileTurn<Shape> work(product, turn, rank);
      multiply_tile<Shape>(sums, stages, work.pieces);
      const int first_row = work.row + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
      if constexpr (Shape::kGated) {
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
  const TensorBox box =
      Shape::kGated ? TensorBox{Shape::kWidth, 2 / kCluster} : TensorBox{Shape::kWidth / kCluster, 1};
  cudaError_t error = describe(weights, weight, product.in, product.out, Shape::kGated ? 2 : 1, box);
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
  const int width = choose_width(launch, linear.out, linear.rows, linear.parts).width;
  const auto launch_shape =
      width == 256   ? launch_tiles<TileShape<2, 256, false>>
      : width == 192 ? launch_tiles<TileShape<2, 192, false>>
      : linear.rows > 64
          ? (width == 128 ? launch_tiles<TileShape<2, 128, false>> : launch_tiles<TileShape<2, 48, false>>)
      : width == 128 ? launch_tiles<TileShape<1, 128, false>>
                     : launch_tiles<TileShape<1, 48, false>>;
  return launch_shape(launch, product, linear.weight, linear.x);
}

cudaError_t gated_tiles(const Launch& launch, const GatedLinear& linear) {
  if (linear.rows < 1 || linear.in % 8 != 0 || linear.inner % 8 != 0) return cudaErrorInvalidValue;
  TileProduct product;
  product.out = linear.inner, product.in = linear.in, product.rows = linear.rows;
  product.bias = linear.bias, product.y = linear.y;
  return launch_tiles<TileShape<2, 224, true>>(launch, product, linear.weight, linear.x);
}

}  // namespace mesh::engine::cuda
