#include "node/engine/cuda/step_buffers.h"

#include <algorithm>
#include <cstddef>

namespace mesh::engine::cuda {
namespace {

/// Gives out pieces of one allocation, or only counts them.
class Pieces {
 public:
  explicit Pieces(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::int64_t bytes) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<std::uint64_t>(bytes) + 255) / 256 * 256;
    return reinterpret_cast<T*>(at);
  }
  std::uint64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::uint64_t used_ = 0;
};

struct Layout {
  float *x, *delta, *qkv, *logits, *cos, *sin, *sums;
  void *normed, *q, *attended, *wide, *gated, *best_scratch, *tables, *narrowed[2];
  int* finite;
  unsigned* counters;
  Best* best;
};

Layout lay_out(const StageShape& shape, Pieces& pieces) {
  const std::int64_t rows = kStageRows, queries = shape.query_heads * shape.head_dim;
  const std::int64_t width = queries + 2 * shape.kv_heads * shape.head_dim;
  const std::int64_t row_sums = kRowBlocks * (4 * shape.head_dim + 8);
  const std::int64_t tile_sums = kTileSplits * kTileSplitRows * shape.query_heads * (shape.head_dim + 2);
  Layout layout{};
  layout.x = pieces.take<float>(rows * shape.hidden * 4);
  layout.delta = pieces.take<float>(rows * shape.hidden * 4);
  layout.normed = pieces.take<void>(rows * shape.hidden * 2);
  layout.qkv = pieces.take<float>(rows * width * 4);
  layout.q = pieces.take<void>(rows * queries * 2);
  layout.attended = pieces.take<void>(rows * queries * 2);
  layout.wide = pieces.take<void>(rows * shape.intermediate * 4);
  layout.gated = pieces.take<void>(rows * shape.intermediate * 2);
  layout.logits = pieces.take<float>(kHeadBatch * shape.vocab * 4);
  layout.cos = pieces.take<float>(rows * kMostPairs * 4);
  layout.sin = pieces.take<float>(rows * kMostPairs * 4);
  layout.sums = pieces.take<float>(std::max(row_sums, tile_sums) * 4);
  layout.counters = pieces.take<unsigned>(rows * shape.query_heads * 4);
  layout.best_scratch = pieces.take<void>(static_cast<std::int64_t>(best_scratch_bytes(kHeadBatch)));
  for (void*& narrowed : layout.narrowed) narrowed = pieces.take<void>(rows * shape.hidden * 2);
  layout.finite = pieces.take<int>(rows * 4);
  layout.best = pieces.take<Best>(rows * static_cast<std::int64_t>(sizeof(Best)));
  layout.tables = pieces.take<void>(sizeof(HostTables));
  return layout;
}

}  // namespace

std::uint64_t StepBuffers::bytes_for(const StageShape& shape) {
  Pieces pieces(nullptr);
  lay_out(shape, pieces);
  return pieces.used();
}

std::int64_t StepBuffers::values_for(const StageShape& shape) {
  if (!shape.quantised) return 0;
  const std::int64_t width = (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim;
  return shape.hidden * std::max(2 * shape.intermediate, width);
}

bool StepBuffers::serves(const StageShape& shape) const {
  return shape.hidden == shape_.hidden && shape.intermediate == shape_.intermediate &&
         shape.vocab == shape_.vocab && shape.quantised == shape_.quantised &&
         shape.query_heads == shape_.query_heads && shape.kv_heads == shape_.kv_heads &&
         shape.head_dim == shape_.head_dim;
}

StepBuffers::StepBuffers(const StageShape& shape) : shape_(shape) {
  memory_ = at::zeros({static_cast<std::int64_t>(bytes_for(shape))}, on_gpu(at::kByte));
  Pieces pieces(static_cast<std::byte*>(memory_.data_ptr()));
  const Layout layout = lay_out(shape, pieces);
  x = layout.x, delta = layout.delta, qkv = layout.qkv, logits = layout.logits;
  cos = layout.cos, sin = layout.sin, normed = layout.normed, q = layout.q;
  attended = layout.attended, wide = layout.wide, gated = layout.gated;
  std::ranges::copy(layout.narrowed, narrowed);
  best_scratch = layout.best_scratch, finite = layout.finite, best = layout.best;
  scratch = {layout.sums, layout.counters};
  device_ = static_cast<HostTables*>(layout.tables);
}

void StepBuffers::begin(const Launch& launch, const HostTables& host, StepInput input) {
  input.host = &host, input.device = device_, input.copied = input.rows > kReadRows;
  if (input.copied) {
    constexpr std::size_t kBytes = offsetof(HostTables, device) + offsetof(DeviceTables, blocks);
    check(cudaMemcpyAsync(device_, &host, kBytes, cudaMemcpyHostToDevice, launch.stream));
  }
  check(begin_step(launch, input));
}

void StepBuffers::send_sampled(const HostTables& host, std::size_t first, std::size_t count,
                               cudaStream_t stream) {
  check(cudaMemcpyAsync(device_->device.sampled, host.device.sampled + first, count * sizeof(int),
                        cudaMemcpyHostToDevice, stream));
}

StepTables StepBuffers::tables() const {
  const DeviceTables& device = device_->device;
  return {.place = device.place,
          .first_block = device.first_block,
          .tiles = device.tiles,
          .sampled = device.sampled,
          .blocks = device.blocks};
}

}  // namespace mesh::engine::cuda
