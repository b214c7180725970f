#include "node/engine/cuda/cuda_stage.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <optional>

#include "node/engine/cuda/cuda_linear.h"
#include "node/engine/cuda/graph_cache.h"
#include "node/engine/cuda/kernels/tile_linear.h"
#include "node/engine/cuda/products.h"
#include "node/engine/cuda/step_slot.h"

namespace mesh::engine::cuda {
namespace {

enum Part : int { kRowLayers, kTileLayers, kHead };

const CudaLinear& own(const LinearWeight& weight) {
  return static_cast<const CudaLinear&>(weight);
}
bool has_codes(const LinearWeight* weight) {
  return weight != nullptr && own(*weight).is_coded();
}
bool has_codes(const StageModel& model) {
  return has_codes(model.tokens) || has_codes(model.head) ||
         std::ranges::any_of(model.layers, [](const StageLayer& layer) {
           return has_codes(layer.qkv) || has_codes(layer.attention_out) || has_codes(layer.mlp_in) ||
                  has_codes(layer.mlp_out);
         });
}
const float* bias_of(const CudaLinear& linear) {
  return linear.bias.defined() ? linear.bias.data_ptr<float>() : nullptr;
}

/// One forward as launches on a stream. Which launches depends on the plan alone, so that a graph can repeat
/// them.
struct Plan {
  int rows = 0;        ///< padding included
  bool single = true;  ///< every row is of a session of its own
  int tiles = 0, splits = 1;
  bool streams_codes = false;  ///< its products are those of few rows with codes
  int head_rows = 0;           ///< of the first batch of rows that enter the head, padding included
  bool head_in_place = false;  ///< they are the first rows, which the head's product can take as they lie
};

/// What x lacks yet: the next norm adds it.
struct Pending {
  const float* delta = nullptr;  ///< [parts, rows, hidden]
  const float* bias = nullptr;
  int parts = 0;
};

class Stage final : public StageForward {
 public:
  Stage(int device, const StageOptions& options) : options_(options) {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    stream_.emplace(c10::cuda::getStreamFromPool(true, static_cast<c10::DeviceIndex>(device)));
    int major = 0, minor = 0, processors = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    options_.tensor_cores &= major >= 8;
    options_.overlap &= major >= 9;
    options_.warpgroups &= has_gated_linear(major, minor);
    launch_ = {stream_->stream(), options_.overlap, processors, options_.tensor_cores};
    products_.use_tensor_cores(options_.tensor_cores);
  }

  bool takes(StageModel& model) const override {
    model.shape.quantised = has_codes(model);
    const StageShape& shape = model.shape;
    const auto pairs = static_cast<std::int64_t>(model.frequencies.size());
    const auto fits = [](const LinearWeight* weight) {
      if (weight == nullptr) return true;
      const CudaLinear& linear = own(*weight);
      if (!linear.is_coded()) return linear.weight.scalar_type() == at::kBFloat16 && linear.in % 8 == 0;
      return linear.in % 64 == 0 && linear.coded.group % 64 == 0;
    };
    const auto layer_fits = [&](const StageLayer& layer) {
      return fits(layer.qkv) && fits(layer.attention_out) && fits(layer.mlp_in) && fits(layer.mlp_out);
    };
    return (shape.head_dim == 32 || shape.head_dim == 64 || shape.head_dim == 128) && shape.hidden % 8 == 0 &&
           shape.intermediate % 8 == 0 && pairs % 8 == 0 && 2 * pairs <= shape.head_dim &&
           fits(model.tokens) && fits(model.head) && std::ranges::all_of(model.layers, layer_fits);
  }

  Status begin(const StageModel& model, StageBatch& batch) override {
    std::unique_ptr<StepBuffers> old;  // until the forward that reads from it is enqueued
    const Status status = guarded([&] {
      const c10::InferenceMode inference;
      const c10::cuda::CUDAStreamGuard guard(*stream_);
      const StageShape& shape = model.shape;
      if (!buffers_ || !buffers_->serves(shape)) {
        for (StepSlot& slot : slots_) slot.finish(nullptr, clock_);
        graphs_.clear();
        begun_ += slots_.size();  // nobody's hidden_rows() are in the new buffers
        if (std::ranges::any_of(batch.segments, &StageSegment::hidden_on_device)) old = std::move(buffers_);
        buffers_.reset();
        products_.resize(StepBuffers::values_for(shape));
        buffers_ = std::make_unique<StepBuffers>(shape);
      }
      batch.number = begun_ + 1;
      slot_of(batch).finish(nullptr, clock_);
      forward(model, batch);
      ++begun_;
    });
    if (!status.ok()) {
      cudaStreamSynchronize(launch_.stream);  // what was enqueued reads the slot
      ++begun_;                               // and may have written where hidden_rows() of an older one lay
    }
    return status;
  }

  Status finish(StageBatch& batch) override {
    slot_of(batch).finish(&batch, clock_);
    return batch.status;
  }

  const std::byte* hidden_rows(const StageBatch& batch) const override {
    if (begun_ - batch.number >= slots_.size()) return nullptr;
    return static_cast<const std::byte*>(buffers_->narrowed[batch.number % slots_.size()]);
  }

  StageCounts counts() const override { return {graph_forwards_, launched_forwards_}; }

 private:
  void forward(const StageModel& model, StageBatch& batch) {
    const Plan plan = fill_tables(model, batch);
    const int hidden = static_cast<int>(model.shape.hidden);
    StepSlot& slot = slot_of(batch);
    StepBuffers& to = *buffers_;
    slot.take_hidden(batch, hidden);
    GraphKey key{model.owner.get(),
                 model.first_layer,
                 static_cast<std::uint32_t>(model.layers.size()),
                 static_cast<int>(batch.number % slots_.size()),
                 plan.single ? kRowLayers : kTileLayers,
                 plan.rows,
                 plan.tiles,
                 plan.splits,
                 plan.head_rows,
                 plan.head_in_place};
    run_part(key, model, true, [&] {
      bring_in(model, plan, slot.tables());
      run_layers(model, plan);
      if (plan.head_rows > 0) enqueue_head(model, plan.head_rows, plan.head_in_place);
      slot.fetch_results(launch_, plan.rows, plan.head_rows, to);
    });
    slot.fetch_hidden(launch_, batch, hidden, to.x, to.narrowed[batch.number % slots_.size()]);
    fetch_heads(model, batch, key);
    const StepKind kind{model.first_layer, std::ssize(model.layers), plan.rows, std::ssize(batch.sampled)};
    slot.close(batch, std::ssize(batch.rotary), kind, launch_.stream);
  }

  void bring_in(const StageModel& model, const Plan& plan, const HostTables& host) {
    StepInput input;
    input.rows = plan.rows, input.tiles = plan.tiles, input.sampled = plan.head_rows;
    input.hidden = static_cast<int>(model.shape.hidden);
    if (model.tokens != nullptr) {
      const CudaLinear& tokens = own(*model.tokens);
      input.coded = tokens.coded;
      if (!tokens.is_coded()) input.embedding = tokens.weight.data_ptr();
    }
    input.x = buffers_->x, input.cos = buffers_->cos, input.sin = buffers_->sin;
    input.rotation_scale = model.rotation_scale, input.pairs = static_cast<int>(model.frequencies.size());
    buffers_->begin(launch_, host, input);
  }

  StepSlot& slot_of(const StageBatch& batch) { return slots_[batch.number % slots_.size()]; }

  /// Few rows are padded to a power of two or a multiple of 16, so that few graphs serve them.
  static int padded(int rows) {
    if (rows <= 16) return static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)));
    return rows <= 64 ? (rows + 15) / 16 * 16 : rows;
  }

  Plan fill_tables(const StageModel& model, const StageBatch& batch) {
    HostTables& host = slot_of(batch).tables();
    DeviceTables& device = host.device;
    Plan plan;
    int rows = 0;
    std::size_t blocks = 0;
    std::int64_t most = 0;
    for (const StageSegment& segment : batch.segments) {
      plan.single &= segment.rows == 1;
      most = std::max(most, segment.start + segment.rows);
      TORCH_CHECK(rows + segment.rows <= kStageRows && blocks + segment.blocks.size() <= kStageBlocks,
                  "more rows or KV blocks than one forward takes");
      const int first_block = static_cast<int>(blocks);
      for (std::byte* block : segment.blocks) device.blocks[blocks++] = block;
      for (std::int64_t i = 0; i < segment.rows; ++i, ++rows) {
        host.ids[rows] = segment.hidden != nullptr ? (segment.hidden_bfloat16 ? kNarrowRow : kWideRow)
                                                   : segment.ids[static_cast<std::size_t>(i)];
        host.rotary[rows] = batch.rotary[static_cast<std::size_t>(rows)];
        device.place[rows] = static_cast<int>(segment.start + i);
        device.first_block[rows] = first_block;
      }
      for (std::int64_t i = 0; i < segment.rows; i += kTileRows) {
        device.tiles[plan.tiles++] = {static_cast<int>(rows - segment.rows + i),
                                      static_cast<int>(std::min<std::int64_t>(kTileRows, segment.rows - i)),
                                      static_cast<int>(segment.start + i), first_block,
                                      static_cast<int>(segment.start)};
      }
    }
    host.block_count = static_cast<int>(blocks);
    plan.rows = padded(rows);
    for (; rows < plan.rows; ++rows) {
      host.ids[rows] = kNoRow;
      host.rotary[rows] = 0;
      host.hidden[rows] = nullptr;
      device.place[rows] = -1;
      device.first_block[rows] = 0;
    }
    const auto padding = std::ranges::transform(batch.sampled, device.sampled, [](const StageSampled& one) {
                           return static_cast<int>(one.row);
                         }).out;
    std::fill_n(padding, std::min<std::ptrdiff_t>(kHeadBatch, std::end(device.sampled) - padding), 0);
    plan_head(model, batch, plan);
    std::ranges::copy(model.frequencies, host.frequencies);
    if (plan.single) plan.tiles = 0;
    plan.streams_codes =
        plan.rows <= kStreamRows && !model.layers.empty() && own(*model.layers.front().qkv).is_coded();
    plan.splits = choose_splits(model.shape, plan, most);
    return plan;
  }

  /// Keys are split while there are too few blocks for the GPU and keys enough.
  int choose_splits(const StageShape& shape, const Plan& plan, std::int64_t keys) const {
    const auto power = [](std::int64_t value) {
      return static_cast<int>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(value, 1))));
    };
    const std::int64_t group = shape.query_heads / shape.kv_heads;
    if (plan.single || !options_.tensor_cores) {
      const std::int64_t width = options_.tensor_cores ? 8 : group == 1 ? 1 : 4;
      const std::int64_t blocks = plan.rows * shape.kv_heads * ((group + width - 1) / width);
      const std::int64_t least = options_.tensor_cores ? 512 : 256;  // keys of a block
      return std::min({power(keys / least), power(2 * launch_.processors / blocks), kMaxSplits});
    }
    if (on_warpgroups(shape)) {
      const std::int64_t blocks = plan.tiles * shape.kv_heads * ((group + 1) / 2);
      // Blocks of a cluster come together: those of one multiple of two or three find all multiprocessors.
      const std::int64_t room = 3 * launch_.processors / (4 * blocks);
      if (room == 3) return keys < 512 ? 1 : 3;  // two never win on an H200
      return std::min({power(keys / 256), power(room), kMostCluster});
    }
    if (plan.rows > kTileSplitRows) return 1;
    const std::int64_t blocks = std::int64_t{plan.tiles} * shape.query_heads;
    return std::min({power(keys / 256), power(2 * launch_.processors / blocks), kTileSplits});
  }
  bool on_warpgroups(const StageShape& shape) const { return options_.warpgroups && shape.head_dim >= 64; }

  static void plan_head(const StageModel& model, const StageBatch& batch, Plan& plan) {
    const auto first =
        std::span(batch.sampled).first(std::min<std::size_t>(kHeadBatch, batch.sampled.size()));
    if (first.empty()) return;
    plan.head_rows = padded(static_cast<int>(first.size()));
    plan.head_in_place = Products::can_stream(own(*model.head), plan.head_rows);
    for (std::size_t i = 0; i < first.size(); ++i) plan.head_in_place &= first[i].row == std::int64_t(i);
  }

  /// What the first rows' head gave, and the head of the others.
  void fetch_heads(const StageModel& model, StageBatch& batch, GraphKey key) {
    StepSlot& slot = slot_of(batch);
    for (std::size_t first = 0; first < batch.sampled.size(); first += kHeadBatch) {
      const std::size_t count = std::min<std::size_t>(kHeadBatch, batch.sampled.size() - first);
      if (first > 0) {
        const int rows = padded(static_cast<int>(count));
        buffers_->send_sampled(slot.tables(), first, count, launch_.stream);
        key.part = kHead, key.rows = key.head_rows = rows, key.tiles = key.splits = 0,
        key.head_in_place = false;
        run_part(key, model, false, [&] { enqueue_head(model, rows, false); });
      }
      slot.fetch_head(batch, first, count, *buffers_, model.shape.vocab, launch_.stream);
    }
  }

  void run_part(const GraphKey& key, const StageModel& model, bool counts,
                const std::function<void()>& enqueue) {
    bool graph = false;
    if (options_.graphs && (key.rows <= 64 || key.rows % 128 == 0)) {
      graph = graphs_.run(key, model.owner, launch_.stream, enqueue);
    } else {
      enqueue();
    }
    if (counts) ++(graph ? graph_forwards_ : launched_forwards_);
  }

  /// W·x (+ bias) of few rows; with `norm` x is float32 and normalised first.
  void stream(const StageModel& model, const LinearWeight& weight, const float* bias, const void* x,
              const float* norm, int rows, StreamStore store, void* y) {
    check(products_.stream(launch_, own(weight),
                           {.bias = bias,
                            .x = x,
                            .norm = norm,
                            .epsilon = model.epsilon,
                            .rows = rows,
                            .store = store,
                            .y = y}));
  }
  /// y ← W·x of more rows, x and y without gaps.
  void product(const LinearWeight& weight, const void* x, int rows, float* y) {
    if (on_tiles(weight, rows)) {
      tiles(weight, x, rows, y, 1);
    } else {
      products_.multiply(launch_, own(weight), x, rows, y, at::kFloat);
    }
  }
  bool on_tiles(const LinearWeight& weight, int rows) const {
    return options_.warpgroups && rows > kStreamRows && !own(weight).is_coded();
  }
  void tiles(const LinearWeight& weight, const void* x, int rows, float* y, int parts) {
    const CudaLinear& linear = own(weight);
    check(tile_linear(launch_, {.weight = linear.weight.data_ptr(),
                                .out = static_cast<int>(linear.out),
                                .in = static_cast<int>(linear.in),
                                .x = x,
                                .rows = rows,
                                .y = y,
                                .parts = parts}));
  }

  AttentionRows attention_of(const StageModel& model, const StageLayer& layer, std::size_t index) const {
    const StageShape& shape = model.shape;
    const std::int64_t layer_bytes = 2 * kKvBlock * shape.kv_heads * shape.head_dim * 2;
    return {.qkv = buffers_->qkv,
            .bias = bias_of(own(*layer.qkv)),
            .heads = static_cast<int>(shape.query_heads),
            .window = static_cast<int>(layer.window),
            .scale = layer.attention_scale,
            .preparation = {layer.query_norm, layer.key_norm, model.epsilon, buffers_->cos, buffers_->sin,
                            static_cast<int>(model.frequencies.size())},
            .kv = {static_cast<int>(shape.kv_heads), static_cast<int>(shape.head_dim),
                   layer_bytes * static_cast<std::int64_t>(index)}};
  }

  /// What the layer's rows are to attention, of rows that are normalised: at once where all rows are of
  /// tiles.
  void prepare_heads(const LinearWeight& weight, const AttentionRows& attention, const Plan& plan) {
    StepBuffers& to = *buffers_;
    if (!plan.single && on_tiles(weight, plan.rows) && takes_heads(attention)) {
      check(heads_linear(launch_, {.weight = own(weight).weight.data_ptr(),
                                   .in = static_cast<int>(own(weight).in),
                                   .x = to.normed,
                                   .rows = plan.rows,
                                   .tables = to.tables(),
                                   .attention = attention,
                                   .q = to.q}));
      return;
    }
    product(weight, to.normed, plan.rows, to.qkv);
    if (!plan.single) check(append_rows(launch_, to.tables(), attention, to.q, plan.rows));
  }

  void attend(const StageShape& shape, const AttentionRows& attention, const Plan& plan) {
    StepBuffers& to = *buffers_;
    Launch launch = launch_;
    launch.halves = plan.streams_codes;
    const StepTables tables = to.tables();
    if (plan.single || !options_.tensor_cores) {
      check(row_attention(launch, tables, attention, plan.single ? nullptr : to.q, to.attended, plan.rows,
                          plan.splits, to.scratch));
    } else if (on_warpgroups(shape)) {
      check(warpgroup_attention(launch_, tables, attention, to.q, to.attended, plan.tiles, plan.splits));
    } else {
      check(tile_attention(launch_, tables, attention, to.q, to.attended, plan.tiles, plan.rows, plan.splits,
                           to.scratch));
    }
  }

  /// x += W·y: at once, or by what is pending for the next norm.
  void add_product(const LinearWeight& weight, const void* y, int rows, Pending& pending) {
    const CudaLinear& linear = own(weight);
    pending = {buffers_->delta, bias_of(linear), 1};
    if (on_tiles(weight, rows)) {
      pending.parts =
          tile_parts(launch_, static_cast<int>(linear.out), static_cast<int>(linear.in), rows, kStageRows);
      tiles(weight, y, rows, buffers_->delta, pending.parts);
    } else if (linear.is_coded()) {
      product(weight, y, rows, buffers_->delta);
    } else {
      Products::add(linear, y, rows, buffers_->x);
      pending = {nullptr, bias_of(linear), 0};
    }
  }
  /// gated ← silu(gate) · up of W·normed.
  void gated_product(const StageModel& model, const LinearWeight& weight, int rows) {
    StepBuffers& to = *buffers_;
    const float* bias = bias_of(own(weight));
    const int inner = static_cast<int>(model.shape.intermediate);
    if (on_tiles(weight, rows)) {
      check(gated_linear(launch_, {.weight = own(weight).weight.data_ptr(),
                                   .bias = bias,
                                   .inner = inner,
                                   .in = static_cast<int>(model.shape.hidden),
                                   .x = to.normed,
                                   .rows = rows,
                                   .y = to.gated}));
      return;
    }
    products_.multiply(launch_, own(weight), to.normed, rows, to.wide, at::kBFloat16);
    check(silu_mul_rows(launch_, to.wide, bias, to.gated, rows, inner));
  }
  /// x += what is pending; normed ← x normalised, if there is a weight.
  void add_and_norm(const StageModel& model, const Pending& pending, const float* weight, int rows) {
    check(norm_parts(launch_, buffers_->x, pending.delta, pending.parts, pending.bias, weight, model.epsilon,
                     weight == nullptr ? nullptr : buffers_->normed, rows,
                     static_cast<int>(model.shape.hidden)));
  }

  void run_layers(const StageModel& model, const Plan& plan) {
    StepBuffers& to = *buffers_;
    const int rows = plan.rows;
    const bool streams = std::ranges::all_of(model.layers, [&](const StageLayer& layer) {
      return std::ranges::all_of(
          std::array{layer.qkv, layer.attention_out, layer.mlp_in, layer.mlp_out},
          [&](const LinearWeight* one) { return Products::can_stream(own(*one), rows); });
    });
    Pending pending;
    launch_.overlap = false;  // the first one: those behind it read tables before they wait
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      const StageLayer& layer = model.layers[i];
      const AttentionRows attention = attention_of(model, layer, i);
      if (streams) {
        const float* out_bias = bias_of(own(*layer.attention_out));
        const float* in_bias = bias_of(own(*layer.mlp_in));
        const float* down_bias = bias_of(own(*layer.mlp_out));
        stream(model, *layer.qkv, nullptr, to.x, layer.attention_norm, rows, StreamStore::kAssign, to.qkv);
        launch_.overlap = options_.overlap;
        if (!plan.single) check(append_rows(launch_, to.tables(), attention, to.q, rows));
        attend(model.shape, attention, plan);
        stream(model, *layer.attention_out, out_bias, to.attended, nullptr, rows, StreamStore::kAdd, to.x);
        stream(model, *layer.mlp_in, in_bias, to.x, layer.mlp_norm, rows, StreamStore::kSiluMul, to.gated);
        stream(model, *layer.mlp_out, down_bias, to.gated, nullptr, rows, StreamStore::kAdd, to.x);
        continue;
      }
      add_and_norm(model, pending, layer.attention_norm, rows);
      launch_.overlap = options_.overlap;
      prepare_heads(*layer.qkv, attention, plan);
      attend(model.shape, attention, plan);
      add_product(*layer.attention_out, to.attended, rows, pending);
      add_and_norm(model, pending, layer.mlp_norm, rows);
      gated_product(model, *layer.mlp_in, rows);
      add_product(*layer.mlp_out, to.gated, rows, pending);
    }
    if (pending.parts > 0) {
      add_and_norm(model, pending, nullptr, rows);
      pending = {};
    }
    check(finish_rows(launch_, to.x, nullptr, pending.bias, to.finite, rows,
                      static_cast<int>(model.shape.hidden)));
    launch_.overlap = options_.overlap;
  }

  void enqueue_head(const StageModel& model, int rows, bool in_place) {
    StepBuffers& to = *buffers_;
    if (in_place) {
      stream(model, *model.head, nullptr, to.x, model.final_norm, rows, StreamStore::kAssign, to.logits);
    } else {
      check(norm_rows(launch_, to.x, nullptr, nullptr, model.final_norm, model.epsilon, to.tables().sampled,
                      to.normed, rows, static_cast<int>(model.shape.hidden)));
      if (Products::can_stream(own(*model.head), rows)) {
        stream(model, *model.head, nullptr, to.normed, nullptr, rows, StreamStore::kAssign, to.logits);
      } else {
        products_.multiply(launch_, own(*model.head), to.normed, rows, to.logits, at::kFloat);
      }
    }
    check(
        best_tokens(launch_, to.logits, rows, static_cast<int>(model.shape.vocab), to.best_scratch, to.best));
  }

  StageOptions options_;
  std::optional<c10::cuda::CUDAStream> stream_;
  Launch launch_;
  std::unique_ptr<StepBuffers> buffers_;
  StepClock clock_;
  std::array<StepSlot, 2> slots_;
  std::uint64_t begun_ = 0;
  Products products_;
  GraphCache graphs_;
  std::atomic<std::uint64_t> graph_forwards_ = 0, launched_forwards_ = 0;
};

}  // namespace

std::unique_ptr<StageForward> make_cuda_stage(int device, const StageOptions& options) {
  return std::make_unique<Stage>(device, options);
}

std::uint64_t cuda_stage_bytes(const StageShape& shape) {
  return StepBuffers::bytes_for(shape) + static_cast<std::uint64_t>(StepBuffers::values_for(shape)) * 2;
}

}  // namespace mesh::engine::cuda
