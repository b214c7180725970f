#include "node/engine/engine.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "common/hub/checkpoint.h"
#include "node/engine/cache/cache_table.h"
#include "node/engine/device/cuda_library.h"
#include "node/engine/device/device_ops.h"
#include "node/engine/device/stage_forward.h"
#include "node/engine/exec/stage_batch.h"
#include "node/engine/exec/step.h"
#include "node/engine/exec/workspace.h"
#include "node/engine/weights/memory_budget.h"
#include "node/engine/weights/shard_loader.h"

namespace mesh::engine {
namespace {

constexpr std::uint64_t kLeftFree = std::uint64_t{1} << 30;

class LocalPromise final : public CachePromise {
 public:
  explicit LocalPromise(MemoryBudget& budget) : promise_(budget) {}
  Status resize(std::uint64_t bytes) override { return promise_.resize(bytes); }

 private:
  MemoryBudget::Promise promise_;
};

class LocalEngine final : public Engine {
 public:
  LocalEngine(std::unique_ptr<DeviceOps> ops, Device device, ComputeType compute, std::uint64_t budget,
              std::uint64_t spill, DeviceNote note, const EngineOptions& options)
      : ops_(std::move(ops)),
        device_(device),
        compute_(compute),
        note_(std::move(note)),
        budget_(budget),
        caches_(*ops_, budget_, spill, options.allocation_faults),
        runner_(*ops_, caches_, options.observer) {}

  Device device() const override { return device_; }
  ComputeType compute() const override { return compute_; }
  const DeviceNote& device_note() const override { return note_; }

  StatusOr<ShardNeeds> shard_needs(hub::Checkpoint& checkpoint, const ModelIdentity& identity,
                                   const ShardSpec& spec) const override {
    MESH_ASSIGN_OR_RETURN(const std::shared_ptr<ShardPlan> plan,
                          plan_shard(context(), checkpoint, identity, spec));
    ShardNeeds needs = needs_of(*plan);
    const std::lock_guard lock(working_mutex_);
    const std::uint64_t working = working_bytes(decoder_of(*plan), is_quantised(*plan));
    needs.working_bytes = working > working_.bytes() ? working - working_.bytes() : 0;
    const std::uint64_t free = budget_.totals().free();
    if (needs.total() > free) {
      return not_enough_memory(fmt::format("{} of {}", to_string(spec), checkpoint.files().describe()),
                               needs.total(), free);
    }
    return needs;
  }

  StatusOr<std::shared_ptr<const Shard>> load(hub::Checkpoint& checkpoint, const ModelIdentity& identity,
                                              const ShardSpec& spec,
                                              const ProgressCallback& progress) override {
    const LoadContext load = context();
    MESH_ASSIGN_OR_RETURN(const std::shared_ptr<ShardPlan> plan,
                          plan_shard(load, checkpoint, identity, spec));
    const std::uint64_t working = working_bytes(decoder_of(*plan), is_quantised(*plan));
    MESH_RETURN_IF_ERROR(set_aside(working));
    auto shard = load_shard(load, checkpoint, *plan, progress);
    end_load(working, shard.ok());
    if (!shard.ok()) return shard.status();
    return std::shared_ptr<const Shard>(*std::move(shard));
  }

  std::uint64_t cache_bytes_per_token(const Shard& shard, const LayerRange& range) const override {
    const ops::KvLayout layout = kv_layout(*static_cast<const LoadedShard&>(shard).decoder);
    const std::int64_t block = ops_->kv_block_bytes(layout.kv_heads, layout.head_dim, layout.element);
    return range.size() * static_cast<std::uint64_t>(block) / kKvBlockTokens;
  }

  std::unique_ptr<CachePromise> promise_caches() override { return std::make_unique<LocalPromise>(budget_); }

  StatusOr<CacheId> open_cache(const std::shared_ptr<const Shard>& shard, const LayerRange& range,
                               Position max_positions) override {
    const auto& loaded = static_cast<const LoadedShard&>(*shard);
    MESH_RETURN_IF_ERROR(check_holds(loaded, range));
    if (max_positions > loaded.profile().max_positions) {
      return error(StatusCode::kOutOfRange, "{} tokens are more than the model takes ({})", max_positions,
                   loaded.profile().max_positions);
    }
    return caches_.open(loaded.identity(), range, kv_layout(*loaded.decoder), max_positions);
  }

  Status trim(CacheId cache, Position position) override { return caches_.trim(cache, position); }
  StatusOr<std::shared_ptr<const SharedBlock>> share(CacheId cache, std::uint32_t index) override {
    return caches_.share(cache, index);
  }
  Status attach(CacheId cache, std::span<const std::shared_ptr<const SharedBlock>> blocks,
                Position tokens) override {
    return caches_.attach(cache, blocks, tokens);
  }
  StatusOr<std::uint64_t> spill(CacheId cache) override { return caches_.spill(cache); }
  StatusOr<std::uint64_t> restore(CacheId cache) override { return caches_.restore(cache); }
  void close_cache(CacheId cache) override { caches_.close(cache); }
  StatusOr<CacheState> cache_state(CacheId cache) const override { return caches_.state(cache); }

  MemoryUse memory() const override {
    const MemoryBudget::Totals totals = budget_.totals();
    const auto used = [&](MemoryUseKind kind) { return totals.used[static_cast<std::size_t>(kind)]; };
    return {.budget_bytes = totals.budget,
            .weight_bytes = used(MemoryUseKind::kWeights),
            .cache_bytes = used(MemoryUseKind::kCache),
            .cache_blocks = caches_.blocks(),
            .shared_blocks = caches_.shared_blocks(),
            .caches = caches_.count(),
            .working_bytes = used(MemoryUseKind::kWorking),
            .spill_budget_bytes = caches_.host().budget(),
            .spilled_bytes = caches_.host().used()};
  }

  ForwardCounts forward_counts() const override {
    const StageForward* stage = ops_->stage();
    const StageCounts staged = stage == nullptr ? StageCounts{} : stage->counts();
    return {staged.graphs, staged.launches, runner_.op_forwards()};
  }

  StatusOr<std::vector<SegmentResult>> step(const std::shared_ptr<const Shard>& shard,
                                            const LayerRange& range,
                                            std::span<const Segment> segments) override {
    MESH_ASSIGN_OR_RETURN(const std::unique_ptr<PendingStep> begun,
                          begin(shard, range, {segments.begin(), segments.end()}));
    return begun->finish();
  }

  std::size_t steps_at_once() const override { return ops_->stage() == nullptr ? 1 : 2; }

  StatusOr<std::unique_ptr<PendingStep>> begin(const std::shared_ptr<const Shard>& shard,
                                               const LayerRange& range,
                                               std::vector<Segment> segments) override {
    auto loaded = std::static_pointer_cast<const LoadedShard>(shard);
    MESH_RETURN_IF_ERROR(check_holds(*loaded, range));
    auto begun = std::make_unique<LocalStep>(*ops_, caches_, std::move(loaded), std::move(segments));
    const std::lock_guard lock(step_mutex_);
    runner_.begin(*begun, range);
    return begun;
  }

 private:
  ops::KvLayout kv_layout(const DecoderSpec& spec) const {
    return {spec.kv_heads, spec.head_dim,
            compute_ == ComputeType::kBfloat16 ? Element::kBf16 : Element::kF32};
  }

  LoadContext context() const {
    return {*ops_, budget_, store_,
            compute_ == ComputeType::kBfloat16 ? WeightFormat::kBfloat16 : WeightFormat::kFloat32};
  }

  std::uint64_t working_bytes(const DecoderSpec& spec, bool quantised) const {
    StageShape shape = stage_shape(spec);
    shape.quantised = quantised;
    return Workspace::bytes_for(spec) + ops_->stage_bytes(shape);
  }

  /// Reserves the working space of steps, for a load that begins.
  Status set_aside(std::uint64_t working) {
    const std::lock_guard lock(working_mutex_);
    if (working > working_.bytes()) {
      MESH_ASSIGN_OR_RETURN(
          MemoryBudget::Reservation more,
          budget_.reserve(MemoryUseKind::kWorking, working - working_.bytes(), "a step's activations"));
      working_.merge(std::move(more));
    }
    loads_working_.insert(working);
    return absl::OkStatus();
  }

  /// What was set aside stays when there is a shard for it, else no longer than other loads need it.
  void end_load(std::uint64_t working, bool loaded) {
    const std::lock_guard lock(working_mutex_);
    loads_working_.erase(loads_working_.find(working));
    if (loaded) shards_working_ = std::max(shards_working_, working);
    const std::uint64_t loads = loads_working_.empty() ? 0 : *loads_working_.rbegin();
    const std::uint64_t needed = std::max(shards_working_, loads);
    if (needed < working_.bytes()) working_.split(working_.bytes() - needed);
  }

  static Status check_holds(const LoadedShard& shard, const LayerRange& range) {
    const bool in_model = shard.profile().allows(range);
    if (in_model && (shard.spec().range.contains(range))) return absl::OkStatus();
    return error(StatusCode::kInvalidArgument, "layers {} are not within this shard, which holds {}",
                 to_string(range), to_string(shard.spec()));
  }

  const std::unique_ptr<DeviceOps> ops_;
  const Device device_;
  const ComputeType compute_;
  const DeviceNote note_;
  mutable MemoryBudget budget_;
  mutable PartStore store_;
  mutable std::mutex working_mutex_;
  MemoryBudget::Reservation working_;
  std::multiset<std::uint64_t> loads_working_;  ///< of it, what loads under way need
  std::uint64_t shards_working_ = 0;            ///< and those that have ended well
  CacheTable caches_;
  std::mutex step_mutex_;
  StepRunner runner_;
};

}  // namespace

StatusOr<Device> parse_device(std::string_view name) {
  if (name == "auto") return Device::kAuto;
  if (name == "cpu") return Device::kCpu;
  if (name == "cuda") return Device::kCuda;
  return error(StatusCode::kInvalidArgument, "\"{}\" is no device; known are auto, cpu, cuda", name);
}

StatusOr<CudaPath> parse_cuda_path(std::string_view name) {
  if (name == "graphs") return CudaPath::kGraphs;
  if (name == "launches") return CudaPath::kLaunches;
  if (name == "ampere") return CudaPath::kAmpere;
  if (name == "portable") return CudaPath::kPortable;
  if (name == "eager") return CudaPath::kEager;
  return error(StatusCode::kInvalidArgument,
               "\"{}\" is no CUDA path; known are graphs, launches, ampere, portable, eager", name);
}

StatusOr<ComputeType> parse_compute_type(std::string_view name) {
  if (name == "auto") return ComputeType::kAuto;
  if (name == "bfloat16") return ComputeType::kBfloat16;
  if (name == "float32") return ComputeType::kFloat32;
  return error(StatusCode::kInvalidArgument, "\"{}\" is no compute type; known are auto, bfloat16, float32",
               name);
}

std::string to_string(const ShardSpec& spec) {
  const std::string quantised = spec.quantization == Quantization::kNone
                                    ? std::string()
                                    : fmt::format(" as {}", to_string(spec.quantization));
  return fmt::format("layers {}{}{}{}", to_string(spec.range), spec.embedding ? " with embedding" : "",
                     spec.head ? " with head" : "", quantised);
}

StatusOr<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  const ComputeType compute =
      options.compute == ComputeType::kAuto ? ComputeType::kBfloat16 : options.compute;
  std::unique_ptr<DeviceOps> ops;
  Device device = Device::kCpu;
  DeviceNote note;
  if (options.device != Device::kCpu) {
    std::string found;
    auto cuda = open_cuda_ops(options.cuda_library, compute == ComputeType::kFloat32, found);
    if (cuda.ok()) {
      ops = *std::move(cuda);
      ops->use_path(options.cuda_path);
      device = Device::kCuda;
    } else if (options.device == Device::kCuda) {
      return cuda.status();
    } else {
      note = {fmt::format("computing on the CPU: {}", found), std::string(message_of(cuda.status()))};
    }
  }
  if (!ops) {
    MESH_ASSIGN_OR_RETURN(ops,
                          make_cpu_ops(options.threads, compute == ComputeType::kBfloat16, options.cpu_path));
  }
  const std::uint64_t free = ops->free_memory();
  const std::uint64_t budget =
      options.memory_bytes != 0 ? options.memory_bytes : free - std::min(free, kLeftFree);
  std::uint64_t spill = options.spill_bytes.value_or(0);
  if (!options.spill_bytes && device == Device::kCuda) {
    const std::uint64_t host = free_host_memory();
    spill = (host - std::min(host, kLeftFree)) / 4;
  }
  return std::make_unique<LocalEngine>(std::move(ops), device, compute, budget, spill, std::move(note),
                                       options);
}

}  // namespace mesh::engine
