#include "node/engine/weights/shard_loader.h"

#include <algorithm>
#include <utility>

#include "common/hub/checkpoint.h"
#include "common/hub/file_names.h"
#include "node/engine/weights/part_fetch.h"
#include "node/engine/weights/part_tasks.h"
#include "node/engine/weights/tensor_catalogue.h"

namespace mesh::engine {
struct ShardPlan {
  ShardPlan(std::shared_ptr<LoadedShard> made, TensorCatalogue names)
      : shard(std::move(made)), catalogue(std::move(names)) {}

  std::shared_ptr<LoadedShard> shard;  // has the parts that are held already
  TensorCatalogue catalogue;
  Precision precision;
  std::vector<MissingPart> missing;
  std::uint64_t loading_bytes = 0;  // of one thread
  std::uint64_t disk_bytes = 0;
  std::vector<std::string> tables;  // of the embedding, by their names in the store
  std::vector<std::string> layers;  // of the range
};

namespace {

std::uint64_t norm_bytes(const NormPlan& plan) {
  return plan.weight.shape[0] * sizeof(float) * (plan.bias ? 2 : 1);
}

StatusOr<std::uint64_t> layer_bytes(const TensorCatalogue& catalogue, const LayerPlan& plan,
                                    const Precision& precision) {
  std::uint64_t bytes = norm_bytes(plan.attention_norm) + norm_bytes(plan.mlp_norm);
  if (plan.query_norm) bytes += norm_bytes(*plan.query_norm);
  if (plan.key_norm) bytes += norm_bytes(*plan.key_norm);
  for (const MatrixPlan* matrix : {&plan.qkv, &plan.attention_out, &plan.mlp_in, &plan.mlp_out}) {
    MESH_ASSIGN_OR_RETURN(const ops::MatrixFormat format,
                          memory_format(catalogue, *matrix, precision, MatrixUse::kLayer));
    bytes += packed_bytes(*matrix, format);
  }
  return bytes;
}

/// Builds the list of missing parts, part by part.
class Planner {
 public:
  Planner(const LoadContext& context, ShardPlan& plan)
      : context_(context), plan_(plan), shard_(*plan.shard) {}

  Status table(const TensorSource& source, MatrixUse use,
               std::vector<std::shared_ptr<const MatrixPart>*> targets) {
    MatrixPlan matrix = table_plan(source);
    MESH_ASSIGN_OR_RETURN(const ops::MatrixFormat format,
                          memory_format(plan_.catalogue, matrix, plan_.precision, use));
    const std::uint64_t bytes = packed_bytes(matrix, format);
    const std::string name = named(source.name);
    if (targets.front() != &shard_.head_matrix) plan_.tables.push_back(name);
    const auto held = context_.store.find<MatrixPart>(shard_.model, name);
    for (auto* target : targets) *target = held;
    if (!held) {
      reads(source, format, false);
      add({name, bytes, TableTarget{std::move(matrix), use, std::move(targets)}, {&source}});
    }
    shard_.weight_bytes += bytes;
    return absl::OkStatus();
  }
  Status layer(std::uint32_t index) {
    const LayerPlan& plan = shard_.decoder->layer_plans[index];
    const std::string name = named(fmt::format("layer {}", index));
    plan_.layers.push_back(name);
    auto& target = shard_.layers[index - shard_.shape.range.begin];
    MESH_ASSIGN_OR_RETURN(const std::uint64_t bytes, layer_bytes(plan_.catalogue, plan, plan_.precision));
    target = context_.store.find<LayerPart>(shard_.model, name);
    if (!target) {
      for (const MatrixPlan* matrix : {&plan.qkv, &plan.attention_out, &plan.mlp_in, &plan.mlp_out}) {
        MESH_ASSIGN_OR_RETURN(const ops::MatrixFormat format,
                              memory_format(plan_.catalogue, *matrix, plan_.precision, MatrixUse::kLayer));
        for (const TensorSource& source : matrix->weights) reads(source, format, matrix->transposed);
      }
      add({name, bytes, LayerTarget{&plan, &target}, sources_of(plan)});
    }
    shard_.weight_bytes += bytes;
    return absl::OkStatus();
  }
  void final_norm() {
    const NormPlan& plan = shard_.decoder->head_plan.norm;
    shard_.final_norm = context_.store.find<NormPart>(shard_.model, "final norm");
    if (!shard_.final_norm) {
      add({"final norm", norm_bytes(plan), NormTarget{&plan, &shard_.final_norm}, sources_of(plan)});
    }
    shard_.weight_bytes += norm_bytes(plan);
  }

 private:
  /// Parts of one identity may be held in one quantization alone; the name says which, should a caller's not.
  std::string named(std::string_view part) const {
    const Quantization quantization = plan_.precision.quantization;
    return quantization == Quantization::kNone ? std::string(part)
                                               : fmt::format("{} ({})", part, to_string(quantization));
  }
  void reads(const TensorSource& source, ops::MatrixFormat format, bool transposed) {
    plan_.loading_bytes =
        std::max(plan_.loading_bytes, reading_bytes(plan_.catalogue, source, format, transposed));
  }
  void add(MissingPart part) {
    for (const TensorSource* source : part.sources) {
      const std::uint64_t bytes = plan_.catalogue.bytes(*source);
      plan_.disk_bytes += bytes;
      plan_.loading_bytes = std::max(plan_.loading_bytes, std::min(bytes, kReadSlice));
    }
    plan_.missing.push_back(std::move(part));
  }

  const LoadContext& context_;
  ShardPlan& plan_;
  LoadedShard& shard_;
};

Status check_range(const ModelProfile& profile, const ShardSpec& spec) {
  if (!profile.allows(spec.range)) {
    return error(StatusCode::kInvalidArgument,
                 "layers {} are no range of this model: it has layers [0, {}) and may be cut at {} borders",
                 to_string(spec.range), profile.layer_count(), profile.split_points.size());
  }
  if (spec.range.empty() && !spec.embedding && !spec.head) {
    return error(StatusCode::kInvalidArgument, "a shard with no layer needs the embedding or the head");
  }
  return absl::OkStatus();
}

std::vector<const TensorSource*> needed_tensors(const DecoderSpec& decoder, const ShardSpec& spec) {
  std::vector<const TensorSource*> sources;
  if (spec.embedding) {
    sources.push_back(&decoder.embedding_plan.tokens);
    if (decoder.embedding_plan.positions) sources.push_back(&*decoder.embedding_plan.positions);
  }
  for (std::uint32_t i = spec.range.begin; i < spec.range.end; ++i) {
    for (const TensorSource* source : sources_of(decoder.layer_plans[i])) sources.push_back(source);
  }
  if (spec.head) {
    for (const TensorSource* source : sources_of(decoder.head_plan.norm)) sources.push_back(source);
    sources.push_back(&decoder.head_plan.matrix);
  }
  return sources;
}

Status plan_parts(const LoadContext& context, ShardPlan& plan) {
  LoadedShard& shard = *plan.shard;
  const DecoderSpec& decoder = *shard.decoder;
  Planner planner(context, plan);
  const TensorSource& tokens = decoder.embedding_plan.tokens;
  const bool tied = decoder.profile.tied_head;
  const bool together = shard.shape.embedding && shard.shape.head && tied;
  if (together) {
    MESH_RETURN_IF_ERROR(planner.table(tokens, MatrixUse::kHead, {&shard.tokens, &shard.head_matrix}));
  } else if (shard.shape.embedding) {
    const MatrixUse use = tied ? MatrixUse::kHead : MatrixUse::kLookUp;
    MESH_RETURN_IF_ERROR(planner.table(tokens, use, {&shard.tokens}));
  }
  if (shard.shape.embedding && decoder.embedding_plan.positions) {
    MESH_RETURN_IF_ERROR(
        planner.table(*decoder.embedding_plan.positions, MatrixUse::kLookUp, {&shard.positions}));
  }
  shard.layers.resize(shard.shape.range.size());
  for (std::uint32_t i = shard.shape.range.begin; i < shard.shape.range.end; ++i)
    MESH_RETURN_IF_ERROR(planner.layer(i));
  if (shard.shape.head && !together) {
    MESH_RETURN_IF_ERROR(planner.table(decoder.head_plan.matrix, MatrixUse::kHead, {&shard.head_matrix}));
  }
  if (shard.shape.head) planner.final_norm();
  return absl::OkStatus();
}

/// The layers, from the range's first on, that a shard of their own would find in the store. Of one thread.
class ReadyLayers {
 public:
  ReadyLayers(const PartStore& store, const ShardPlan& plan) : store_(store), plan_(plan) {}

  LayerRange range() {
    const LoadedShard& shard = *plan_.shard;
    const auto there = [&](const std::string& name) {
      return store_.find<void>(shard.model, name) != nullptr;
    };
    const LayerRange& all = shard.shape.range;
    if (tables_ < plan_.tables.size()) {
      while (tables_ < plan_.tables.size() && there(plan_.tables[tables_])) ++tables_;
      if (tables_ < plan_.tables.size()) return {all.begin, all.begin};
    }
    // The last one is ready when the load has ended.
    while (layers_ + 1 < plan_.layers.size() && there(plan_.layers[layers_])) ++layers_;
    LayerRange ready{all.begin, all.begin + static_cast<std::uint32_t>(layers_)};
    while (!ready.empty() && !shard.profile().allows(ready)) --ready.end;
    return ready;
  }

 private:
  const PartStore& store_;
  const ShardPlan& plan_;
  std::size_t tables_ = 0, layers_ = 0;  // that are there
};

}  // namespace

StatusOr<std::shared_ptr<ShardPlan>> plan_shard(const LoadContext& context, hub::Checkpoint& checkpoint,
                                                const ModelIdentity& identity, const ShardSpec& spec) {
  MESH_ASSIGN_OR_RETURN(const std::string config, checkpoint.files().read_small(hub::kConfig));
  auto decoder = read_decoder_spec(config);
  if (!decoder.ok()) return with_context(decoder.status(), checkpoint.files().describe());
  auto shard = std::make_shared<LoadedShard>();
  shard->decoder = std::make_shared<const DecoderSpec>(*std::move(decoder));
  shard->model = identity;
  shard->shape = spec;
  MESH_RETURN_IF_ERROR(check_range(shard->profile(), spec));
  MESH_ASSIGN_OR_RETURN(TensorCatalogue catalogue, TensorCatalogue::make(checkpoint, *shard->decoder));
  MESH_RETURN_IF_ERROR(catalogue.check(checkpoint, needed_tensors(*shard->decoder, spec)));
  auto plan = std::make_shared<ShardPlan>(std::move(shard), std::move(catalogue));
  MESH_ASSIGN_OR_RETURN(const Quantization quantization,
                        plan->shard->profile().quantization(spec.quantization));
  plan->precision = {context.compute, quantization,
                     plan->shard->profile().stored_quantization != Quantization::kNone};
  const Status planned = plan_parts(context, *plan);
  if (!planned.ok()) return with_context(planned, checkpoint.files().describe());
  return plan;
}

ShardNeeds needs_of(const ShardPlan& plan) {
  ShardNeeds needs;
  for (const MissingPart& part : plan.missing) needs.weight_bytes += part.bytes;
  needs.loading_bytes = load_threads() * plan.loading_bytes;
  return needs;
}

const DecoderSpec& decoder_of(const ShardPlan& plan) {
  return *plan.shard->decoder;
}

bool is_quantised(const ShardPlan& plan) {
  return plan.precision.quantization != Quantization::kNone;
}

StatusOr<std::shared_ptr<const LoadedShard>> load_shard(const LoadContext& context,
                                                        hub::Checkpoint& checkpoint, ShardPlan& plan,
                                                        const ProgressCallback& progress) {
  const std::string what =
      fmt::format("{} of {}", to_string(plan.shard->shape), checkpoint.files().describe());
  const ShardNeeds needs = needs_of(plan);
  MESH_ASSIGN_OR_RETURN(MemoryBudget::Reservation reserved,
                        context.budget.reserve(MemoryUseKind::kWeights, needs.total(), what));
  LoadMeter meter(plan.disk_bytes);
  const PartReader reader(context, checkpoint, plan.catalogue, plan.precision, meter);
  PartFetch fetch(checkpoint, plan.catalogue, plan.missing, meter);
  PartTasks tasks(reader, context.store, plan.shard->model, [&meter] { meter.tell(); });
  for (std::size_t i = 0; i < plan.missing.size(); ++i) {
    const MissingPart& part = plan.missing[i];
    tasks.add(part, reserved.split(part.bytes), [&fetch, i] { return fetch.wait(i); });
  }
  ReadyLayers ready(context.store, plan);
  const ProgressCallback told = [&](LoadProgress so_far) {
    if (!progress) return true;
    so_far.ready = ready.range();
    return progress(so_far);
  };
  std::function<Status()> bring;
  if (!plan.missing.empty()) bring = [&fetch] { return fetch.run(); };
  MESH_RETURN_IF_ERROR(run_load_tasks(tasks.list(), meter, told, bring));
  return std::shared_ptr<const LoadedShard>(plan.shard);
}

}  // namespace mesh::engine
