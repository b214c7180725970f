#include "node/engine/models/model_profile.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "common/base/check.h"
#include "node/engine/models/decoder_spec.h"

namespace mesh::engine {
namespace {

constexpr std::uint64_t kNf4Block = 64;
constexpr std::uint64_t kFp8Group = 128;
constexpr std::array kQuantizations = {Quantization::kNone, Quantization::kInt8, Quantization::kNf4,
                                       Quantization::kFp8};

std::uint64_t value_bytes(WeightFormat format) {
  return format == WeightFormat::kBfloat16 ? 2 : 4;
}

std::uint64_t int8_bytes(std::uint64_t out, std::uint64_t in) {
  return out * (in + sizeof(float));
}
std::uint64_t nf4_bytes(std::uint64_t out, std::uint64_t in) {
  return out * (in / 2 + in / std::gcd(in, kNf4Block) * sizeof(float));
}

std::uint64_t fp8_bytes(std::uint64_t out, std::uint64_t in) {
  return out * (in + in / std::gcd(in, kFp8Group) * sizeof(float));
}

std::uint64_t values_of(const TensorSource& source) {
  std::uint64_t values = 1;
  for (const std::uint64_t extent : source.shape) values *= extent;
  return values;
}

/// bfloat16 under every quantization.
void add_plain(std::uint64_t values, PartSize& size) {
  size.matrix_values += values;
  size.int8_bytes += 2 * values;
  size.nf4_bytes += 2 * values;
  size.fp8_bytes += 2 * values;
}

void add(const MatrixPlan& plan, const DecoderSpec& spec, PartSize& size) {
  std::uint64_t values = 0;
  for (const TensorSource& source : plan.weights) values += values_of(source);
  MESH_CHECK(values == plan.in * plan.out);
  MESH_CHECK(plan.biases.empty() || plan.biases.size() == plan.weights.size());
  for (const TensorSource& source : plan.biases) size.vector_values += values_of(source);
  const bool stored = spec.profile.stored_quantization != Quantization::kNone;
  if (stored && spec.keeps(plan.weights[0])) return add_plain(values, size);
  size.matrix_values += values;
  size.int8_bytes += int8_bytes(plan.out, plan.in);
  const bool whole_blocks = plan.in % kNf4Block == 0;
  size.nf4_bytes += stored || whole_blocks ? nf4_bytes(plan.out, plan.in) : int8_bytes(plan.out, plan.in);
  size.fp8_bytes += fp8_bytes(plan.out, plan.in);
}

void add(const NormPlan& plan, PartSize& size) {
  size.vector_values += values_of(plan.weight);
  if (plan.bias) size.vector_values += values_of(*plan.bias);
}

/// A table [rows, H]: INT8 rows when `quantised`, to whatever, else bfloat16.
void add_table(const TensorSource& source, bool quantised, PartSize& size) {
  const std::uint64_t values = values_of(source), rows = source.shape[0], in = source.shape[1];
  if (!quantised) return add_plain(values, size);
  size.matrix_values += values;
  for (std::uint64_t* bytes : {&size.int8_bytes, &size.nf4_bytes, &size.fp8_bytes})
    *bytes += int8_bytes(rows, in);
}

PartSize size_of(const LayerPlan& plan, const DecoderSpec& spec) {
  PartSize size;
  for (const NormPlan* norm : {&plan.attention_norm, &plan.mlp_norm}) add(*norm, size);
  for (const std::optional<NormPlan>* norm : {&plan.query_norm, &plan.key_norm}) {
    if (*norm) add(**norm, size);
  }
  for (const MatrixPlan* matrix : {&plan.qkv, &plan.attention_out, &plan.mlp_in, &plan.mlp_out})
    add(*matrix, spec, size);
  return size;
}

}  // namespace

std::string_view to_string(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFloat32:
      return "float32";
    case WeightFormat::kInt8:
      return "int8";
    case WeightFormat::kNf4:
      return "nf4";
    case WeightFormat::kFp8:
      return "fp8";
    case WeightFormat::kBfloat16:
      break;
  }
  return "bfloat16";
}

std::string_view to_string(Quantization quantization) {
  switch (quantization) {
    case Quantization::kInt8:
      return "int8";
    case Quantization::kNf4:
      return "nf4";
    case Quantization::kFp8:
      return "fp8";
    case Quantization::kNone:
      break;
  }
  return "bfloat16";
}

StatusOr<Quantization> parse_quantization(std::string_view name) {
  for (const Quantization known : kQuantizations) {
    if (name == to_string(known)) return known;
  }
  return error(StatusCode::kInvalidArgument, "\"{}\" is no quantization; known are bfloat16, int8, nf4, fp8",
               name);
}

StatusOr<WeightFormat> parse_weight_format(std::string_view name) {
  if (name == "bfloat16") return WeightFormat::kBfloat16;
  if (name == "float32") return WeightFormat::kFloat32;
  return error(StatusCode::kInvalidArgument, "\"{}\" is no weight format; known are bfloat16, float32", name);
}

std::uint64_t PartSize::matrix_bytes(WeightFormat format) const {
  switch (format) {
    case WeightFormat::kInt8:
      return int8_bytes;
    case WeightFormat::kNf4:
      return nf4_bytes;
    case WeightFormat::kFp8:
      return fp8_bytes;
    default:
      return matrix_values * value_bytes(format);
  }
}

std::uint64_t PartSize::bytes(WeightFormat format) const {
  return matrix_bytes(format) + vector_values * sizeof(float);
}

bool ModelProfile::allows(const LayerRange& range) const {
  const auto cut = [&](std::uint32_t at) {
    return std::binary_search(split_points.begin(), split_points.end(), at);
  };
  return range.begin <= range.end && cut(range.begin) && cut(range.end);
}

StatusOr<Quantization> ModelProfile::quantization(Quantization asked) const {
  if (stored_quantization == Quantization::kNone || asked == stored_quantization) return asked;
  if (asked == Quantization::kNone) return stored_quantization;
  return error(StatusCode::kInvalidArgument,
               "this checkpoint is quantised to {} and cannot become {}; use --quantization {} or bfloat16",
               to_string(stored_quantization), to_string(asked), to_string(stored_quantization));
}

WeightFormat ModelProfile::matrix_format(WeightFormat compute, Quantization quantization) const {
  switch (quantization) {
    case Quantization::kInt8:
      return WeightFormat::kInt8;
    case Quantization::kNf4:
      return WeightFormat::kNf4;
    case Quantization::kFp8:
      return WeightFormat::kFp8;
    case Quantization::kNone:
      break;
  }
  return stated_dtype == "bfloat16" ? WeightFormat::kBfloat16 : compute;
}

std::uint64_t ModelProfile::weight_bytes(const LayerRange& range, bool with_embedding, bool with_head,
                                         WeightFormat format) const {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = range.begin; i < range.end; ++i) bytes += layers.at(i).bytes(format);
  if (with_embedding) bytes += embedding.bytes(format);
  if (with_head) bytes += head.bytes(format);
  if (with_embedding && with_head && tied_head) bytes -= head.matrix_bytes(format);
  return bytes;
}

std::uint64_t ModelProfile::kv_bytes_per_token(const LayerRange& range, WeightFormat format) const {
  std::uint64_t values = 0;
  for (std::uint32_t i = range.begin; i < range.end; ++i) values += layers.at(i).kv_values;
  return values * value_bytes(format);
}

bool DecoderSpec::keeps(const TensorSource& source) const {
  if (kept_modules.empty()) return false;
  const std::string module = source.name.substr(0, source.name.rfind(".weight"));
  if (!source.prefixed) return kept_modules.contains(module);
  return std::ranges::any_of(
      prefixes, [&](const std::string& prefix) { return kept_modules.contains(prefix + module); });
}

void finish_profile(DecoderSpec& spec) {
  MESH_CHECK(spec.layers.size() == spec.layer_plans.size());
  ModelProfile& profile = spec.profile;
  profile.hidden = spec.hidden;
  profile.vocab = spec.vocab;
  const bool stored = profile.stored_quantization != Quantization::kNone;
  profile.layers.clear();
  profile.split_points = {0};
  for (const LayerPlan& plan : spec.layer_plans) {
    PartSize size = size_of(plan, spec);
    size.kv_values = std::uint64_t{2} * spec.kv_heads * spec.head_dim;
    profile.layers.push_back(size);
    profile.split_points.push_back(profile.layer_count());
  }
  profile.embedding = {};
  add_table(spec.embedding_plan.tokens, profile.tied_head && !stored, profile.embedding);
  if (spec.embedding_plan.positions) add_table(*spec.embedding_plan.positions, false, profile.embedding);
  profile.head = {};
  add(spec.head_plan.norm, profile.head);
  add_table(spec.head_plan.matrix, !stored, profile.head);
}

}  // namespace mesh::engine
