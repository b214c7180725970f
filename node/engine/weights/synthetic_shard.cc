#include "node/engine/weights/synthetic_shard.h"

#include <algorithm>
#include <random>
#include <utility>

namespace mesh::engine {
namespace {

constexpr float kDeviation = 0.02f;
constexpr std::uint64_t kSliceValues = 1u << 22;

class Maker {
 public:
  Maker(const LoadContext& context, std::uint64_t seed)
      : context_(context),
        element_(context.compute == WeightFormat::kFloat32 ? Element::kF32 : Element::kBf16),
        seed_(seed << 20) {}

  std::uint64_t bytes() const { return bytes_; }

  StatusOr<NormWeights> norm(const NormPlan& plan) {
    NormWeights norm;
    const auto size = static_cast<std::size_t>(plan.weight.shape[0]);
    MESH_ASSIGN_OR_RETURN(norm.weight, context_.ops.upload_vector(std::vector<float>(size, 1.0f)));
    if (plan.bias) {
      MESH_ASSIGN_OR_RETURN(norm.bias, context_.ops.upload_vector(std::vector<float>(size, 0.0f)));
    }
    return norm;
  }
  StatusOr<LinearPtr> matrix(const MatrixPlan& plan) {
    return matrix(plan.out, plan.in, !plan.biases.empty());
  }
  StatusOr<LinearPtr> matrix(std::uint64_t out, std::uint64_t in, bool bias) {
    MESH_ASSIGN_OR_RETURN(
        const std::unique_ptr<LinearLoader> loader,
        context_.ops.linear_loader(static_cast<std::int64_t>(out), static_cast<std::int64_t>(in), element_));
    MESH_ASSIGN_OR_RETURN(const bool made, loader->fill_normal(++seed_, kDeviation));
    if (!made) MESH_RETURN_IF_ERROR(append_rows(out, in, *loader));
    if (bias) MESH_RETURN_IF_ERROR(loader->set_bias(0, normal(out)));
    MESH_ASSIGN_OR_RETURN(LinearPtr matrix, loader->finish());
    bytes_ += matrix->bytes();
    return matrix;
  }
  StatusOr<std::shared_ptr<LayerPart>> layer(const LayerPlan& plan) {
    auto part = std::make_shared<LayerPart>();
    MESH_ASSIGN_OR_RETURN(part->attention_norm, norm(plan.attention_norm));
    MESH_ASSIGN_OR_RETURN(part->qkv, matrix(plan.qkv));
    if (plan.query_norm) {
      MESH_ASSIGN_OR_RETURN(part->query_norm, norm(*plan.query_norm));
    }
    if (plan.key_norm) {
      MESH_ASSIGN_OR_RETURN(part->key_norm, norm(*plan.key_norm));
    }
    MESH_ASSIGN_OR_RETURN(part->attention_out, matrix(plan.attention_out));
    MESH_ASSIGN_OR_RETURN(part->mlp_norm, norm(plan.mlp_norm));
    MESH_ASSIGN_OR_RETURN(part->mlp_in, matrix(plan.mlp_in));
    MESH_ASSIGN_OR_RETURN(part->mlp_out, matrix(plan.mlp_out));
    return part;
  }
  StatusOr<std::shared_ptr<const MatrixPart>> table(const TensorSource& source) {
    auto part = std::make_shared<MatrixPart>();
    MESH_ASSIGN_OR_RETURN(part->matrix, matrix(source.shape[0], source.shape[1], false));
    return std::shared_ptr<const MatrixPart>(std::move(part));
  }

 private:
  std::vector<float> normal(std::uint64_t count) {
    std::minstd_rand random(static_cast<std::uint32_t>(++seed_));
    std::normal_distribution<float> distribution(0, kDeviation);
    std::vector<float> values(count);
    for (float& value : values) value = distribution(random);
    return values;
  }
  Status append_rows(std::uint64_t out, std::uint64_t in, LinearLoader& loader) {
    const std::uint64_t step = std::max<std::uint64_t>(1, kSliceValues / in);
    for (std::uint64_t row = 0; row < out; row += step) {
      const std::uint64_t rows = std::min(step, out - row);
      const std::vector<float> values = normal(rows * in);
      MESH_RETURN_IF_ERROR(loader.append_rows(values.data(), Element::kF32, static_cast<std::int64_t>(rows),
                                              static_cast<std::int64_t>(in)));
    }
    return absl::OkStatus();
  }

  const LoadContext& context_;
  const Element element_;
  std::uint64_t seed_;
  std::uint64_t bytes_ = 0;
};

Status make_parts(Maker& maker, LoadedShard& shard) {
  const DecoderSpec& decoder = *shard.decoder;
  if (shard.shape.embedding) {
    MESH_ASSIGN_OR_RETURN(shard.tokens, maker.table(decoder.embedding_plan.tokens));
    if (decoder.embedding_plan.positions) {
      MESH_ASSIGN_OR_RETURN(shard.positions, maker.table(*decoder.embedding_plan.positions));
    }
  }
  for (std::uint32_t i = shard.shape.range.begin; i < shard.shape.range.end; ++i) {
    MESH_ASSIGN_OR_RETURN(shard.layers.emplace_back(), maker.layer(decoder.layer_plans[i]));
  }
  if (!shard.shape.head) return absl::OkStatus();
  if (shard.tokens && decoder.profile.tied_head) {
    shard.head_matrix = shard.tokens;
  } else {
    MESH_ASSIGN_OR_RETURN(shard.head_matrix, maker.table(decoder.head_plan.matrix));
  }
  auto norm = std::make_shared<NormPart>();
  MESH_ASSIGN_OR_RETURN(norm->norm, maker.norm(decoder.head_plan.norm));
  shard.final_norm = std::move(norm);
  return absl::OkStatus();
}

/// The shard with what it reserved.
struct Held {
  LoadedShard shard;
  MemoryBudget::Reservation memory;
};

}  // namespace

StatusOr<std::shared_ptr<const LoadedShard>> synthetic_shard(const LoadContext& context,
                                                             std::string_view config_json,
                                                             const ModelIdentity& identity,
                                                             const ShardSpec& spec, std::uint64_t seed) {
  MESH_ASSIGN_OR_RETURN(DecoderSpec decoder, read_decoder_spec(config_json));
  if (!decoder.profile.allows(spec.range)) {
    return error(StatusCode::kInvalidArgument, "layers {} are no range of this model of {} layers",
                 to_string(spec.range), decoder.profile.layer_count());
  }
  auto held = std::make_shared<Held>();
  const std::uint64_t bytes =
      decoder.profile.weight_bytes(spec.range, spec.embedding, spec.head, context.compute);
  MESH_ASSIGN_OR_RETURN(held->memory,
                        context.budget.reserve(MemoryUseKind::kWeights, bytes,
                                               fmt::format("{} of synthetic weights", to_string(spec))));
  LoadedShard& shard = held->shard;
  shard.decoder = std::make_shared<const DecoderSpec>(std::move(decoder));
  shard.model = identity;
  shard.shape = spec;
  Maker maker(context, seed);
  MESH_RETURN_IF_ERROR(make_parts(maker, shard));
  shard.weight_bytes = maker.bytes();
  return std::shared_ptr<const LoadedShard>(held, &held->shard);
}

}  // namespace mesh::engine
