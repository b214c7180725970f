#include "node/engine/ops/attention.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "common/base/check.h"
#include "node/engine/ops/kernels.h"

namespace mesh::ops {
namespace {
constexpr std::int64_t kBlock = KvLayout::kBlock;
// Query rows (query × head of the group) that pass over the keys together: three to eight register tiles.
constexpr std::int64_t kTileRows = 39;

// One work item: some of the rows that share a segment's KV head, numbered query · group + head within the
// group.
struct Item {
  const AttentionSegment* segment;
  std::int64_t kv_head;
  std::int64_t first, last;
};

struct Workspace {  // one thread's
  std::vector<float> query, packed_query, scores, output;
  std::vector<SoftmaxState> states;

  void prepare(std::int64_t rows, std::int64_t dim, std::int64_t padded) {
    query.resize(static_cast<std::size_t>(rows * dim));
    packed_query.resize(static_cast<std::size_t>(rows * dim));
    scores.resize(static_cast<std::size_t>(rows * kBlock));
    output.assign(static_cast<std::size_t>(rows * padded), 0.0f);
    states.assign(static_cast<std::size_t>(rows), SoftmaxState{-std::numeric_limits<float>::infinity(), 0});
  }
};

struct Visible {  // positions [begin, end)
  std::int64_t begin, end;
};

class ItemRunner {
 public:
  ItemRunner(const Kernels& kernels, const KvLayout& layout, const AttentionOptions& options, ConstMatrix q,
             Matrix out)
      : kernels_(kernels),
        layout_(layout),
        options_(options),
        group_(options.heads / layout.kv_heads),
        q_(q),
        out_(out) {}

  void run(const Item& item, Workspace& work) const {
    const std::int64_t rows = item.last - item.first;
    const std::int64_t dim = layout_.head_dim;
    const std::int64_t padded = layout_.padded_dim();
    work.prepare(rows, dim, padded);
    std::int64_t begin = std::numeric_limits<std::int64_t>::max();
    std::int64_t end = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* from = q_.row(row_of(item, row)) + column_of(item, row);
      std::copy(from, from + dim, work.query.begin() + row * dim);
      const Visible visible = visible_to(item, row);
      begin = std::min(begin, visible.begin);
      end = std::max(end, visible.end);
    }
    kernels_.pack_rows(work.query.data(), dim, rows, 0, dim, work.packed_query.data());
    for (std::int64_t block = begin / kBlock; block * kBlock < end; ++block) {
      one_block(item, block, std::min(kBlock, end - block * kBlock), work);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      const float total = work.states[static_cast<std::size_t>(row)].sum;
      const float factor = total > 0 || total != total ? 1.0f / total : 0.0f;
      float* output = work.output.data() + row * padded;
      kernels_.scale(output, dim, factor);
      std::copy(output, output + dim, out_.row(row_of(item, row)) + column_of(item, row));
    }
  }

 private:
  std::int64_t query_of(const Item& item, std::int64_t row) const { return (item.first + row) / group_; }
  std::int64_t row_of(const Item& item, std::int64_t row) const {
    return item.segment->first_row + query_of(item, row);
  }
  std::int64_t column_of(const Item& item, std::int64_t row) const {
    return (item.kv_head * group_ + (item.first + row) % group_) * layout_.head_dim;
  }
  Visible visible_to(const Item& item, std::int64_t row) const {
    const AttentionSegment& segment = *item.segment;
    const std::int64_t position = segment.start + query_of(item, row);
    const std::int64_t begin =
        options_.window > 0 ? std::max<std::int64_t>(0, position - options_.window + 1) : 0;
    return {begin, segment.mask != nullptr ? segment.start + segment.rows : position + 1};
  }

  // Scores, softmax and values of the first `count` positions of one block, for all rows of the item.
  void one_block(const Item& item, std::int64_t block, std::int64_t count, Workspace& work) const {
    const AttentionSegment& segment = *item.segment;
    const std::int64_t rows = item.last - item.first;
    const std::int64_t dim = layout_.head_dim;
    const std::int64_t padded = layout_.padded_dim();
    const std::int64_t size = element_size(layout_.element);
    const std::byte* head =
        segment.blocks[static_cast<std::size_t>(block)] + item.kv_head * layout_.head_bytes();

    GemmArgs keys;
    keys.panels = head;
    keys.panel_stride = dim * 32 * size;
    keys.element = layout_.element;
    keys.k = dim;
    keys.a = work.packed_query.data();
    keys.m = rows;
    keys.c = work.scores.data();
    keys.c_stride = kBlock;
    keys.n = kBlock;
    kernels_.gemm(keys, 0, (count + 31) / 32);

    const std::int64_t base = block * kBlock;
    for (std::int64_t row = 0; row < rows; ++row) {
      const Visible visible = visible_to(item, row);
      SoftmaxRow softmax;
      softmax.scores = work.scores.data() + row * kBlock;
      softmax.begin = std::clamp<std::int64_t>(visible.begin - base, 0, count);
      softmax.end = std::clamp<std::int64_t>(visible.end - base, 0, count);
      if (segment.mask != nullptr)
        softmax.mask = segment.mask + query_of(item, row) * segment.mask_stride + base;
      softmax.scale = options_.scale;
      softmax.count = count;
      const float shrink = kernels_.softmax_row(softmax, work.states[static_cast<std::size_t>(row)]);
      if (shrink != 1.0f) kernels_.scale(work.output.data() + row * padded, padded, shrink);
    }

    GemmArgs values;
    values.panels = head + layout_.key_bytes();
    values.panel_stride = kBlock * 32 * size;
    values.element = layout_.element;
    values.k = count;
    values.a = work.scores.data();
    values.a_stride = kBlock;
    values.m = rows;
    values.c = work.output.data();
    values.c_stride = padded;
    values.n = padded;
    values.add = true;
    kernels_.gemm(values, 0, padded / 32);
  }

  const Kernels& kernels_;
  const KvLayout& layout_;
  const AttentionOptions& options_;
  const std::int64_t group_;
  const ConstMatrix q_;
  const Matrix out_;
};
}  // namespace

void attention(CpuBackend& backend, const KvLayout& layout, const AttentionOptions& options,
               std::span<const AttentionSegment> segments, ConstMatrix q, Matrix out) {
  MESH_CHECK(layout.kv_heads > 0 && options.heads > 0 && options.heads % layout.kv_heads == 0);
  MESH_CHECK(q.cols == options.heads * layout.head_dim && out.cols == q.cols);
  const std::int64_t group = options.heads / layout.kv_heads;
  std::vector<Item> items;
  for (const AttentionSegment& segment : segments) {
    MESH_CHECK(segment.first_row + segment.rows <= q.rows && segment.first_row + segment.rows <= out.rows);
    MESH_CHECK(segment.start + segment.rows <= static_cast<std::int64_t>(segment.blocks.size()) * kBlock);
    const std::int64_t rows = segment.rows * group;
    for (std::int64_t first = 0; first < rows; first += kTileRows) {
      for (std::int64_t head = 0; head < layout.kv_heads; ++head) {
        items.push_back({&segment, head, first, std::min(first + kTileRows, rows)});
      }
    }
  }
  const ItemRunner runner(backend.kernels(), layout, options, q, out);
  backend.pool().parallel_for(static_cast<std::int64_t>(items.size()), 1,
                              [&](std::int64_t begin, std::int64_t end) {
                                static thread_local Workspace work;
                                for (std::int64_t i = begin; i < end; ++i)
                                  runner.run(items[static_cast<std::size_t>(i)], work);
                              });
}

}  // namespace mesh::ops
