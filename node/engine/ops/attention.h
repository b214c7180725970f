#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/kv_blocks.h"
#include "node/engine/ops/backend.h"

namespace mesh::ops {

/// One layer's KV block: keys and values of 128 consecutive positions, all KV heads. Per head the keys come
/// first, as 4 panels of 32 positions, in each for every dimension its 32 values; then the values, as
/// ⌈head_dim / 32⌉ panels of 32 dimensions, in each for every position its 32 values. Within a bfloat16 panel
/// row the order is that of PackedLinear. Blocks are opaque bytes otherwise: copy, move or fork them whole.
/// 64-byte aligned.
struct KvLayout {
  static constexpr std::int64_t kBlock = kKvBlockTokens;

  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  Element element = Element::kF32;  ///< kF32 or kBf16

  std::int64_t padded_dim() const { return (head_dim + 31) / 32 * 32; }
  std::int64_t key_bytes() const { return kBlock * head_dim * element_size(element); }
  std::int64_t value_bytes() const { return kBlock * padded_dim() * element_size(element); }
  std::int64_t head_bytes() const { return key_bytes() + value_bytes(); }
  std::int64_t block_bytes() const { return kv_heads * head_bytes(); }
};

/// Consecutive rows of one session inside the step's matrices.
struct AttentionSegment {
  std::int64_t first_row = 0;  ///< its rows are [first_row, first_row + rows) of q, k, v and out
  std::int64_t rows = 0;
  std::int64_t start = 0;  ///< position of its first row = tokens in the cache before it
  /// This layer's blocks: positions [128·i, 128·(i+1)) lie in blocks[i]; at least ⌈(start + rows) / 128⌉ of
  /// them.
  std::span<std::byte* const> blocks;
  /// Visibility given by the caller in place of the causal rule: [rows, start + rows], `mask_stride` values
  /// between rows, added to the scaled scores; −inf hides. Null: row at position i sees j ≤ i.
  const float* mask = nullptr;
  std::int64_t mask_stride = 0;
};

struct AttentionOptions {
  std::int64_t heads =
      0;  ///< query heads, a multiple of kv_heads; query head h reads KV head h / (heads / kv_heads)
  std::int64_t window = 0;  ///< > 0: position j is visible to i only if i − window < j ≤ i (with a mask too)
  float scale = 1;          ///< multiplies q·k, usually head_dim^−½
};

/// Stores the segments' keys (already rotated) and values: k, v [T, kv_heads · head_dim].
void append_kv(CpuBackend& backend, const KvLayout& layout, std::span<const AttentionSegment> segments,
               ConstMatrix k, ConstMatrix v);

/// out[row, h] = Σ_j softmax_j(scale · q[row, h]·k[j] + mask) v[j] over the visible positions j; q, out
/// [T, heads · head_dim], which may be the same memory. append_kv must have been called for the segments. A
/// row that sees nothing gives zeros. Positions are summed in blocks of 128 in ascending order (online
/// softmax): a row's result depends on its query and its session's cache alone.
void attention(CpuBackend& backend, const KvLayout& layout, const AttentionOptions& options,
               std::span<const AttentionSegment> segments, ConstMatrix q, Matrix out);

}  // namespace mesh::ops
