#include <cstring>

#include "common/base/check.h"
#include "node/engine/ops/attention.h"
#include "node/engine/ops/elementwise.h"

namespace mesh::ops {
namespace {
std::int64_t place(Element element, std::int64_t column) {
  if (element == Element::kF32) return column;
  return column < 16 ? 2 * column : 2 * (column - 16) + 1;
}

void put(Element element, std::byte* base, std::int64_t index, float value) {
  if (element == Element::kBf16) {
    const Bf16 rounded = to_bf16(value);
    std::memcpy(base + index * 2, &rounded, sizeof(rounded));
  } else {
    std::memcpy(base + index * 4, &value, sizeof(value));
  }
}

// One position of one head.
void put_position(const KvLayout& layout, std::byte* head, std::int64_t slot, const float* k,
                  const float* v) {
  const std::int64_t key_panel = slot / 32 * layout.head_dim * 32 + place(layout.element, slot % 32);
  std::byte* values = head + layout.key_bytes();
  for (std::int64_t d = 0; d < layout.head_dim; ++d) {
    put(layout.element, head, key_panel + d * 32, k[d]);
    put(layout.element, values, (d / 32 * KvLayout::kBlock + slot) * 32 + place(layout.element, d % 32),
        v[d]);
  }
}
}  // namespace

void append_kv(CpuBackend& backend, const KvLayout& layout, std::span<const AttentionSegment> segments,
               ConstMatrix k, ConstMatrix v) {
  MESH_CHECK(k.cols == layout.kv_heads * layout.head_dim && v.cols == k.cols);
  for (const AttentionSegment& segment : segments) {
    MESH_CHECK(segment.first_row + segment.rows <= k.rows && segment.first_row + segment.rows <= v.rows);
    MESH_CHECK(segment.start + segment.rows <=
               static_cast<std::int64_t>(segment.blocks.size()) * KvLayout::kBlock);
    backend.pool().parallel_for(segment.rows, 32, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t position = segment.start + row;
        std::byte* block = segment.blocks[static_cast<std::size_t>(position / KvLayout::kBlock)];
        for (std::int64_t head = 0; head < layout.kv_heads; ++head) {
          put_position(layout, block + head * layout.head_bytes(), position % KvLayout::kBlock,
                       k.row(segment.first_row + row) + head * layout.head_dim,
                       v.row(segment.first_row + row) + head * layout.head_dim);
        }
      }
    });
  }
}

}  // namespace mesh::ops
