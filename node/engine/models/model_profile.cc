#include "node/engine/models/model_profile.h"

#include <algorithm>

#include "common/base/check.h"
#include "node/engine/models/decoder_spec.h"

namespace mesh::engine {
namespace {

std::uint64_t matrix_bytes(WeightFormat format) {
  return format == WeightFormat::kBfloat16 ? 2 : 4;
}

std::uint64_t values_of(const TensorSource& source) {
  std::uint64_t values = 1;
  for (const std::uint64_t extent : source.shape) values *= extent;
  return values;
}

void add(const MatrixPlan& plan, PartSize& size) {
  std::uint64_t values = 0;
  for (const TensorSource& source : plan.weights) values += values_of(source);
  MESH_CHECK(values == plan.in * plan.out);
  MESH_CHECK(plan.biases.empty() || plan.biases.size() == plan.weights.size());
  size.matrix_values += values;
  for (const TensorSource& source : plan.biases) size.vector_values += values_of(source);
}

void add(const NormPlan& plan, PartSize& size) {
  size.vector_values += values_of(plan.weight);
  if (plan.bias) size.vector_values += values_of(*plan.bias);
}

PartSize size_of(const LayerPlan& plan) {
  PartSize size;
  for (const NormPlan* norm : {&plan.attention_norm, &plan.mlp_norm}) add(*norm, size);
  for (const std::optional<NormPlan>* norm : {&plan.query_norm, &plan.key_norm}) {
    if (*norm) add(**norm, size);
  }
  for (const MatrixPlan* matrix : {&plan.qkv, &plan.attention_out, &plan.mlp_in, &plan.mlp_out})
    add(*matrix, size);
  return size;
}

}  // namespace

std::string_view to_string(WeightFormat format) {
  return format == WeightFormat::kBfloat16 ? "bfloat16" : "float32";
}

StatusOr<WeightFormat> parse_weight_format(std::string_view name) {
  if (name == "bfloat16") return WeightFormat::kBfloat16;
  if (name == "float32") return WeightFormat::kFloat32;
  return error(StatusCode::kInvalidArgument, "\"{}\" is no weight format; known are bfloat16, float32", name);
}

std::uint64_t PartSize::bytes(WeightFormat format) const {
  return matrix_values * matrix_bytes(format) + vector_values * sizeof(float);
}

bool ModelProfile::allows(const LayerRange& range) const {
  const auto cut = [&](std::uint32_t at) {
    return std::binary_search(split_points.begin(), split_points.end(), at);
  };
  return range.begin <= range.end && cut(range.begin) && cut(range.end);
}

WeightFormat ModelProfile::matrix_format(WeightFormat compute) const {
  return stated_dtype == "bfloat16" ? WeightFormat::kBfloat16 : compute;
}

std::uint64_t ModelProfile::weight_bytes(const LayerRange& range, bool with_embedding, bool with_head,
                                         WeightFormat format) const {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = range.begin; i < range.end; ++i) bytes += layers.at(i).bytes(format);
  if (with_embedding) bytes += embedding.bytes(format);
  if (with_head) bytes += head.bytes(format);
  if (with_embedding && with_head && tied_head) bytes -= head.matrix_values * matrix_bytes(format);
  return bytes;
}

std::uint64_t ModelProfile::kv_bytes_per_token(const LayerRange& range, WeightFormat format) const {
  std::uint64_t values = 0;
  for (std::uint32_t i = range.begin; i < range.end; ++i) values += layers.at(i).kv_values;
  return values * matrix_bytes(format);
}

void finish_profile(DecoderSpec& spec) {
  MESH_CHECK(spec.layers.size() == spec.layer_plans.size());
  ModelProfile& profile = spec.profile;
  profile.hidden = spec.hidden;
  profile.vocab = spec.vocab;
  profile.layers.clear();
  profile.split_points = {0};
  for (const LayerPlan& plan : spec.layer_plans) {
    PartSize size = size_of(plan);
    size.kv_values = std::uint64_t{2} * spec.kv_heads * spec.head_dim;
    profile.layers.push_back(size);
    profile.split_points.push_back(profile.layer_count());
  }
  profile.embedding = {};
  profile.embedding.matrix_values = values_of(spec.embedding_plan.tokens);
  if (spec.embedding_plan.positions)
    profile.embedding.matrix_values += values_of(*spec.embedding_plan.positions);
  profile.head = {};
  add(spec.head_plan.norm, profile.head);
  profile.head.matrix_values = values_of(spec.head_plan.matrix);
}

}  // namespace mesh::engine
