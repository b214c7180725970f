#pragma once

#include "node/engine/cuda/kernels/gated_linear.h"
#include "node/engine/cuda/kernels/kernels.h"

/// Products of three rows and more on warpgroup products (compute capability 9.0 alone). Addresses multiples
/// of 16.
namespace mesh::engine::cuda {

inline constexpr int kMostParts = 4;  ///< most runs of inputs of tile_linear

/// y [parts, rows, out] float32: part p is W·x over the p-th of `parts` equal runs of inputs, so that W·x is
/// the sum of the parts. Nothing waits for another part.
struct TileLinear {
  const void* weight = nullptr;  ///< [out, in] bfloat16
  int out = 0, in = 0;           ///< multiples of 8
  const void* x = nullptr;       ///< [rows, in] bfloat16
  int rows = 0;
  float* y = nullptr;
  int parts = 1;  ///< 1 … kMostParts, at most in / 64
};
cudaError_t tile_linear(const Launch& launch, const TileLinear& linear);
/// How many parts give the GPU's multiprocessors the least to do, the fewest among equals; parts · rows ≤
/// most_rows.
int tile_parts(const Launch& launch, int out, int in, int rows, int most_rows);

/// append_rows of W·x in one launch, where takes_heads(attention): no norm of heads, and all of a head is
/// rotated. attention.qkv is not used.
struct HeadsLinear {
  const void* weight = nullptr;  ///< [(heads + 2 kv_heads) · head_dim, in] bfloat16
  int in = 0;                    ///< a multiple of 8
  const void* x = nullptr;       ///< [rows, in] bfloat16
  int rows = 0;
  StepTables tables;
  AttentionRows attention;
  void* q = nullptr;  ///< [rows, heads · head_dim] bfloat16
};
bool takes_heads(const AttentionRows& attention);
cudaError_t heads_linear(const Launch& launch, const HeadsLinear& linear);

inline constexpr int kGatedWidth = 112;  ///< outputs of a tile of gated_tiles
/// gated_linear by tiles for one block a multiprocessor: of any number of rows.
cudaError_t gated_tiles(const Launch& launch, const GatedLinear& linear);

/// x [rows, hidden] += the `count` parts [count, rows, hidden] in their order + bias (may be null), then out
/// (may be null) ← bfloat16(x / rms(x) · weight). hidden is a multiple of 4.
cudaError_t norm_parts(const Launch& launch, float* x, const float* parts, int count, const float* bias,
                       const float* weight, float epsilon, void* out, int rows, int hidden);

}  // namespace mesh::engine::cuda
