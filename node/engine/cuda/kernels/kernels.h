#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "node/engine/cuda/kernels/coded_matrix.h"

/// The fused path's kernels: plain pointers and a stream, no torch. Activations of T rows lie without gaps
/// unless a stride is given; the residual stream, qkv and logits are float32, what enters a product is
/// bfloat16. Every function only enqueues. With `overlap` a launch may begin while the one ahead of it ends
/// (compute capability 9.0); all launches of a step go to one stream.
namespace mesh::engine::cuda {

inline constexpr int kKvBlock = 128;
inline constexpr int kStreamRows = 2;   ///< most rows of stream_linear
inline constexpr int kCodedRows = 64;   ///< most rows of tile_codes
inline constexpr int kMaxSplits = 32;   ///< most pieces of one row's keys
inline constexpr int kTileRows = 64;    ///< query rows of one tile of tile_attention
inline constexpr int kMostCluster = 8;  ///< most pieces of a tile's keys on warpgroups

struct Launch {
  cudaStream_t stream = nullptr;
  bool overlap = false;
  int processors = 0;         ///< multiprocessors of the GPU
  bool tensor_cores = false;  ///< own kernels on tensor cores (compute capability 8.0)
  /// The launches before and after have a block for each multiprocessor that takes half of it. So must this
  /// one, else some multiprocessors get two blocks of the next launch and others none.
  bool halves = false;
};

/// A query tile: rows of one segment.
struct Tile {
  int first_row, rows, start, first_block;  ///< start: position of its first row
  int stored = 0;                           ///< keys of the segment in the cache before this step
};

/// The step's rows, in device memory at addresses that do not change.
struct StepTables {
  const int* place = nullptr;        ///< [T] position in the cache; −1: a padding row
  const int* first_block = nullptr;  ///< [T] the row's session's first entry in `blocks`
  const Tile* tiles = nullptr;       ///< rows 0: no tile
  const int* sampled = nullptr;      ///< [R] rows that enter the head
  std::byte* const* blocks = nullptr;
};

/// A layer's part of a session's KV block: keys [kv_heads, 128, head_dim] at layer_offset, then the values.
struct KvShape {
  int kv_heads = 0;
  int head_dim = 0;  ///< 32, 64 or 128
  std::int64_t layer_offset = 0;
};

/// Query and key before attention: optional RMS norm per head, then rotation of the first 2 · pairs values.
struct HeadPreparation {
  const float* query_norm = nullptr;  ///< [head_dim] or null
  const float* key_norm = nullptr;
  float epsilon = 0;
  const float* cos = nullptr;  ///< [T, pairs]
  const float* sin = nullptr;
  int pairs = 0;  ///< a multiple of 8, 2 · pairs ≤ head_dim
};

/// x += delta + bias (each may be null), then out ← bfloat16(x / rms(x) · weight). With `sampled` row i of
/// out comes from row sampled[i], and delta must be null.
cudaError_t norm_rows(const Launch& launch, float* x, const float* delta, const float* bias,
                      const float* weight, float epsilon, const int* sampled, void* out, int rows,
                      int hidden);
/// x += delta + bias (may be null); finite[row] ← whether all values of the row are.
cudaError_t finish_rows(const Launch& launch, float* x, const float* delta, const float* bias, int* finite,
                        int rows, int hidden);
/// out [T, I] ← silu(x[:, :I] + bias) · (x[:, I:] + bias); x [T, 2·I] bfloat16.
cudaError_t silu_mul_rows(const Launch& launch, const void* x, const float* bias, void* out, int rows,
                          int inner);

struct Best {
  int id;         ///< the lowest among equals; −1: a value is not finite
  float logprob;  ///< log-softmax at it
};
/// Arg-max of each row of logits [R, V]. `scratch`: best_scratch_bytes(R), zero before the first use.
std::size_t best_scratch_bytes(int rows);
cudaError_t best_tokens(const Launch& launch, const float* logits, int rows, int vocab, void* scratch,
                        Best* best);

enum class StreamStore : int {
  kAssign,   ///< y float32 ← W·x + bias
  kAdd,      ///< y += W·x + bias
  kSiluMul,  ///< y bfloat16 [T, out/2] ← silu(gate) · up; W's first half are gate rows
};
struct StreamLinear {
  const void* weight = nullptr;  ///< [out, in] bfloat16, in a multiple of 8; or `coded`
  const float* bias = nullptr;   ///< [out] or null
  int out = 0, in = 0;
  const void* x = nullptr;      ///< [rows, in] bfloat16, or float32 when norm is given
  const float* norm = nullptr;  ///< [in]: x is normalised first, as norm_rows does
  float epsilon = 0;
  int rows = 0;  ///< 1 … kStreamRows
  StreamStore store = StreamStore::kAssign;
  void* y = nullptr;       ///< [rows, out], no gaps
  CodedMatrix coded = {};  ///< with rows: instead of `weight`; in and group multiples of 64
};
/// NF4 and FP8 weights meet inputs in half precision, scaled so that the largest fits; INT8 weights meet
/// integers of 15 bits, with a unit for each 256 inputs, as on a CPU. Neither is rounded to bfloat16.
cudaError_t stream_linear(const Launch& launch, const StreamLinear& linear);
cudaError_t stream_codes(const Launch& launch, const StreamLinear& linear);
/// Shared memory that a block needs for linear.rows inputs of linear.in values, at least; what a GPU's blocks
/// may take: 64 KiB (compute capability 7.5), 99 (8.6, 8.9), 163 (8.0), 227 (9.0).
std::size_t stream_bytes(const StreamLinear& linear);
std::size_t stream_codes_bytes(const StreamLinear& linear);
std::size_t block_shared_bytes();                  ///< of the current GPU
inline constexpr std::size_t kStreamStatic = 256;  ///< of stream_bytes(): what is not by length

/// y [rows, out], float32 or bfloat16, ← W·x, x [rows, in] bfloat16; in and group multiples of 64, up to
/// kCodedRows rows (compute capability 8.0).
cudaError_t tile_codes(const Launch& launch, const CodedMatrix& matrix, const void* x, int rows, void* y,
                       bool to_bfloat16);
/// to [count, in], float32 or bfloat16, ← rows `rows` (null: the first ones) of the matrix.
cudaError_t dequantise(const Launch& launch, const CodedMatrix& matrix, const int* rows, int count, void* to,
                       bool to_bfloat16);
/// Codes and scales like those of normal(0, deviation) weights, a function of seed and place alone.
cudaError_t fill_codes(cudaStream_t stream, const CodedMatrix& matrix, std::uint64_t seed, float deviation);

/// q of attention: rows of T × (heads + 2 kv_heads) × head_dim float32 as the product left them.
struct AttentionRows {
  const float* qkv = nullptr;
  const float* bias = nullptr;  ///< of qkv, or null
  int heads = 0;
  int window = 0;
  float scale = 1;
  HeadPreparation preparation;
  KvShape kv;
};
/// Rows' queries, prepared, as bfloat16 q [T, heads · head_dim]; keys and values into the cache.
cudaError_t append_rows(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                        void* q, int rows);

struct SplitScratch {
  float* sums = nullptr;         ///< [split_floats()]
  unsigned* counters = nullptr;  ///< [rows · heads], zero before the first use
};
std::size_t split_floats(int rows, int heads, int head_dim, int splits);

/// Attention of rows that each see their own session's keys in the cache up to their place; out bfloat16 [T,
/// heads · head_dim]. q null: also what append_rows does, for rows of different sessions. A row's keys are
/// shared by `splits` blocks.
cudaError_t row_attention(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                          const void* q, void* out, int rows, int splits, const SplitScratch& scratch);
/// The same on tensor cores, which row_attention() takes when the launch says so.
cudaError_t group_attention(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                            const void* q, void* out, int rows, int splits, const SplitScratch& scratch);
/// The same by tiles of up to 64 rows on tensor cores (compute capability 8.0), after append_rows.
cudaError_t tile_attention(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                           const void* q, void* out, int tiles, int rows, int splits,
                           const SplitScratch& scratch);

/// The same on warpgroup products (compute capability 9.0 alone); head_dim 64 or 128, up to
/// kMostCluster splits.
cudaError_t warpgroup_attention(const Launch& launch, const StepTables& tables,
                                const AttentionRows& attention, const void* q, void* out, int tiles,
                                int splits);

/// Fills `count` bfloat16 or float32 values with normal(0, deviation), a function of seed and index alone.
cudaError_t fill_normal(cudaStream_t stream, void* values, bool bfloat16, std::int64_t count,
                        std::uint64_t seed, float deviation);

}  // namespace mesh::engine::cuda
