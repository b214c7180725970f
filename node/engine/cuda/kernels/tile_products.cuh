#pragma once

#include <algorithm>

#include "node/engine/cuda/kernels/tensor_map.cuh"
#include "node/engine/cuda/kernels/tile_stages.cuh"
#include "node/engine/cuda/kernels/wgmma_wide.cuh"

/// Products of rows with a matrix by tiles in shared memory (compute capability 9.0a). A block takes tiles in
/// turn, 64 rows for each warpgroup, over all inputs or a run of them. One warp asks for pieces of 64 inputs,
/// those of the matrix before the launch ahead has ended.
namespace mesh::engine::cuda {

inline constexpr int kPieceInputs = kBoxColumns;

enum class TileStore {
  kSums,
  kGated,  ///< the first half of a tile's columns are gates, the others ups
  kHeads,  ///< heads, prepared, for attention: a head's values that are rotated together are in one tile
};

/// kColumns of the product.
template <int kGroups_, int kColumns_, TileStore kStore_, int kCluster_ = (kColumns_ > 128 ? 2 : 1)>
struct TileShape {
  static constexpr int kGroups = kGroups_, kColumns = kColumns_, kRows = kGroups * 64;
  static constexpr TileStore kStore = kStore_;
  static constexpr bool kGated = kStore == TileStore::kGated;
  static constexpr int kWidth = kGated ? kColumns / 2 : kColumns;  ///< outputs of a tile
  static constexpr int kCluster = kCluster_;                       ///< blocks with the same outputs
  static constexpr int kPairs = kColumns == 48 ? 8 : 16;  ///< kHeads: values that are rotated, in a copy
  static constexpr int kAsker = kGroups * 128, kThreads = kAsker + 32;
  static constexpr int kWeightBytes = kColumns * kPieceInputs * 2;
  static constexpr int kStageBytes = kWeightBytes + kRows * kPieceInputs * 2;
  static constexpr int kStages = std::min(224 * 1024 / kStageBytes, 16);
};

/// What is multiplied, and how many tiles it has.
struct TileProduct {
  int out = 0, in = 0, rows = 0;
  int parts = 1;
  int row_tiles = 0, output_tiles = 0;  ///< row_tiles: of a cluster together
  int box_rows = 0;                     ///< that a copy brings: less than a tile's if there are no more
  const float* bias = nullptr;          ///< gated alone: [2 · out] or null
  void* y = nullptr;
  StepTables tables = {};  ///< this and what follows: of heads alone, whose queries go to y
  AttentionRows attention = {};
  int half_bits =
      0;  ///< 2^half_bits pairs of a head: divisions would take longer than what a thread asks for

  __host__ __device__ int turns() const { return row_tiles * output_tiles * parts; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// What a block does in a turn: tiles of the same outputs are neighbours.
template <class Shape>
struct TileTurn {
  int row, output, part, first, pieces;  // of inputs

  __device__ TileTurn(const TileProduct& product, int turn, int rank) {
    const int all = (product.in + kPieceInputs - 1) / kPieceInputs;
    row = (turn % product.row_tiles * Shape::kCluster + rank) * Shape::kRows;
    output = turn / product.row_tiles % product.output_tiles * Shape::kWidth;
    part = turn / (product.row_tiles * product.output_tiles);
    first = all * part / product.parts, pieces = all * (part + 1) / product.parts - first;
  }
  __device__ int input(int piece) const { return (first + piece) * kPieceInputs; }
};

/// A piece of the matrix for kColumns / 2 pairs from `pair` on, of heads of 2^half_bits pairs each: runs of
/// kPairs pairs, their first values, then the second ones.
template <class Shape>
__device__ void ask_for_heads(const TileStages<Shape>& stage, const CUtensorMap& weights, int input, int pair,
                              int half_bits, int rank) {
  constexpr int kBytes = 2 * Shape::kPairs * kPieceInputs * 2;
#pragma unroll
  for (int run = 0; run < Shape::kColumns / 2 / Shape::kPairs; ++run) {
    const int first = pair + run * Shape::kPairs, row = first & ((1 << half_bits) - 1),
              plane = first >> half_bits << 1;
    if constexpr (Shape::kCluster > 1) {
      if (run % Shape::kCluster != rank) continue;
      share_box(stage.weights() + run * kBytes, weights, stage.full(), input, row, plane, kEvictFirst);
    } else {
      copy_box(stage.weights() + run * kBytes, weights, stage.full(), input, row, plane, kEvictFirst);
    }
  }
}

/// Of one thread: all turns of the block.
template <class Shape>
__device__ void ask_for_tiles(const CUtensorMap& weights, const CUtensorMap& rows, TileStages<Shape> to,
                              const TileProduct& product, int first_turn, int step, int rank) {
  const auto ask_weights = [&](const TileStages<Shape>& stage, int input, int output) {
    expect_bytes(stage.full(), Shape::kWeightBytes + product.box_rows * kPieceInputs * 2);
    if constexpr (Shape::kStore == TileStore::kHeads) {
      ask_for_heads<Shape>(stage, weights, input, output / 2, product.half_bits, rank);
    } else if constexpr (Shape::kCluster == 1) {
      copy_box(stage.weights(), weights, stage.full(), input, output, 0, kEvictFirst);
    } else {  // half of it to both
      share_box(stage.weights() + rank * (Shape::kWeightBytes / 2), weights, stage.full(), input,
                Shape::kGated ? output : output + rank * (Shape::kColumns / 2), Shape::kGated ? rank : 0,
                kEvictFirst);
    }
  };
  TileTurn<Shape> work(product, first_turn, rank);
  TileStages<Shape> early = to;
  int ahead = min(work.pieces, Shape::kStages);
  for (int i = 0; i < ahead; ++i, early.advance()) ask_weights(early, work.input(i), work.output);
  wait_for_previous_launch();
  for (int turn = first_turn; turn < product.turns(); turn += step) {
    work = TileTurn<Shape>(product, turn, rank);
    for (int piece = 0; piece < work.pieces; ++piece, --ahead, to.advance()) {
      if (ahead <= 0) {
        wait_at(to.empty(), (to.round + 1) & 1);
        ask_weights(to, work.input(piece), work.output);
      }
      copy_box(to.rows(), rows, to.full(), work.input(piece), work.row, 0, kEvictLast);
    }
  }
}

/// sums ← the tile's product, of one warpgroup.
template <class Shape>
__device__ void multiply_tile(float (&sums)[Shape::kColumns / 2], TileStages<Shape>& stages, int pieces) {
  const int group = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < Shape::kColumns / 2; ++i) sums[i] = 0;
  const auto let_go = [&](unsigned barrier) {
    if constexpr (Shape::kCluster == 1) {
      if (lane == 0) arrive_at(barrier);
    } else {
      if (lane < Shape::kCluster) arrive_at_block(barrier, static_cast<unsigned>(lane));
    }
  };
  unsigned before = 0;
  for (int i = 0; i < pieces; ++i, stages.advance()) {
    wait_at(stages.full(), stages.round & 1);
    const std::uint64_t a = tile_descriptor(stages.rows() + group * 64 * kPieceInputs * 2),
                        b = tile_descriptor(stages.weights());
    begin_products();
#pragma unroll
    for (int k = 0; k < kPieceInputs / 16; ++k) multiply_tiles(sums, a + 2 * k, b + 2 * k);
    end_products();
    wait_for_products<1>();
    if (i > 0) let_go(before);
    before = stages.empty();
  }
  wait_for_products<0>();
  let_go(before);
}

template <class Shape>
__device__ void store_sums(const float (&sums)[Shape::kColumns / 2], const TileProduct& product,
                           const TileTurn<Shape>& work, int first_row, int column) {
  float* const y = static_cast<float*>(product.y) + std::int64_t{work.part} * product.rows * product.out;
#pragma unroll
  for (int j = 0; j < Shape::kColumns / 8; ++j) {
    const int output = work.output + j * 8 + column;
    if (output >= product.out) continue;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + r * 8;
      if (row >= product.rows) continue;
      *reinterpret_cast<float2*>(y + std::int64_t{row} * product.out + output) =
          make_float2(sums[4 * j + 2 * r], sums[4 * j + 2 * r + 1]);
    }
  }
}

__device__ inline float silu(float x) {
  return __fdividef(x, 1 + __expf(-x));
}

/// Two neighbours give each other a word, so that each has four outputs of one of two columns of eight.
template <class Shape>
__device__ void store_gated(const float (&sums)[Shape::kColumns / 2], const TileProduct& product,
                            const TileTurn<Shape>& work, int first_row, int column) {
  static_assert(Shape::kWidth % 16 == 0);
  const bool odd = column % 4 != 0;
  const auto gated = [&](int j, int r) {
    const int output = min(work.output + j * 8 + column, product.out - 2);
    const float* gates = sums + 4 * j + 2 * r;
    const float* ups = gates + Shape::kColumns / 4;
    float2 gate{gates[0], gates[1]}, up{ups[0], ups[1]};
    if (product.bias != nullptr) {
      const float2 gate_bias = *reinterpret_cast<const float2*>(product.bias + output);
      const float2 up_bias = *reinterpret_cast<const float2*>(product.bias + product.out + output);
      gate.x += gate_bias.x, gate.y += gate_bias.y, up.x += up_bias.x, up.y += up_bias.y;
    }
    return narrow(silu(gate.x) * up.x, silu(gate.y) * up.y);
  };
#pragma unroll
  for (int j = 0; j < Shape::kWidth / 8; j += 2) {
    const int output = work.output + (odd ? (j + 1) * 8 + column - 2 : j * 8 + column);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t low = gated(j, r), high = gated(j + 1, r);
      const std::uint32_t other = __shfl_xor_sync(~0u, odd ? low : high, 1);
      const int row = first_row + r * 8;
      if (row >= product.rows || output >= product.out) continue;
      *reinterpret_cast<uint2*>(static_cast<Bf*>(product.y) + std::int64_t{row} * product.out + output) =
          odd ? make_uint2(other, high) : make_uint2(low, other);
    }
  }
}
#endif

}  // namespace mesh::engine::cuda
