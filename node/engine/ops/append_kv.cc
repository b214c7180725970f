#include <algorithm>
#include <vector>

#include "common/base/check.h"
#include "node/engine/ops/attention.h"
#include "node/engine/ops/kernels.h"

namespace mesh::ops {
namespace {
std::int64_t place(Element element, std::int64_t column) {
  if (element == Element::kF32) return column;
  return column < 16 ? 2 * column : 2 * (column - 16) + 1;
}

// One position of one head. T is what an element is stored as.
template <class T>
void put_position(const KvLayout& layout, std::byte* head, std::int64_t slot, const T* k, const T* v) {
  auto* keys =
      reinterpret_cast<T*>(head) + slot / 32 * layout.head_dim * 32 + place(layout.element, slot % 32);
  for (std::int64_t d = 0; d < layout.head_dim; ++d) keys[d * 32] = k[d];
  auto* values = reinterpret_cast<T*>(head + layout.key_bytes()) + slot * 32;
  for (std::int64_t first = 0; first < layout.head_dim; first += 32) {
    const std::int64_t count = std::min<std::int64_t>(32, layout.head_dim - first);
    for (std::int64_t d = 0; d < count; ++d) values[place(layout.element, d)] = v[first + d];
    values += KvLayout::kBlock * 32;
  }
}

void put_row(const Kernels& kernels, const KvLayout& layout, std::byte* block, std::int64_t slot,
             const float* k, const float* v) {
  static thread_local std::vector<std::uint16_t> rounded;
  const std::int64_t width = layout.kv_heads * layout.head_dim;
  if (layout.element == Element::kBf16) {
    rounded.resize(static_cast<std::size_t>(2 * width));
    kernels.to_bf16(k, width, rounded.data());
    kernels.to_bf16(v, width, rounded.data() + width);
  }
  for (std::int64_t h = 0; h < layout.kv_heads; ++h) {
    std::byte* head = block + h * layout.head_bytes();
    const std::int64_t at = h * layout.head_dim;
    if (layout.element == Element::kBf16) {
      put_position(layout, head, slot, rounded.data() + at, rounded.data() + width + at);
    } else {
      put_position(layout, head, slot, k + at, v + at);
    }
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
        put_row(backend.kernels(), layout, block, position % KvLayout::kBlock, k.row(segment.first_row + row),
                v.row(segment.first_row + row));
      }
    });
  }
}

}  // namespace mesh::ops
