#include "node/engine/models/architecture.h"

#include <fmt/ranges.h>

#include "node/engine/models/arch/arch.h"
#include "node/engine/models/quantization_config.h"

namespace mesh::engine {
namespace {

/// config.json of a larger model that nests its language model: the inner fields win over the outer ones.
json::Value flattened(const json::Value& config) {
  if (!config.is_object()) return config;
  const auto* inner = config.as_object().if_contains("text_config");
  if (inner == nullptr || !inner->is_object()) return config;
  json::Object merged = config.as_object();
  merged.erase("text_config");
  for (const auto& [key, value] : config.as_object().at("text_config").as_object()) merged[key] = value;
  return merged;
}

}  // namespace

std::span<const Architecture> architectures() {
  static const Architecture list[] = {arch::kGpt2, arch::kLlama, arch::kMistral, arch::kQwen2, arch::kQwen3};
  return list;
}

std::vector<std::string_view> supported_model_types() {
  std::vector<std::string_view> names;
  for (const Architecture& family : architectures()) names.push_back(family.model_type);
  return names;
}

StatusOr<DecoderSpec> read_decoder_spec(std::string_view config_json) {
  auto parsed = json::parse(config_json);
  if (!parsed.ok()) return with_context(parsed.status(), "config.json");
  const json::Value config = flattened(*parsed);
  const json::View view(config);
  auto model_type = view.get<std::string>("model_type");
  if (!model_type.ok()) return with_context(model_type.status(), "config.json");
  for (const Architecture& family : architectures()) {
    if (family.model_type != *model_type) continue;
    auto spec = family.read(view);
    if (!spec.ok()) return with_context(spec.status(), fmt::format("config.json ({})", *model_type));
    auto stored = read_stored_weights(view);
    if (!stored.ok()) return with_context(stored.status(), fmt::format("config.json ({})", *model_type));
    spec->profile.stored_quantization = stored->quantization;
    spec->kept_modules = std::move(stored->kept);
    finish_profile(*spec);
    return spec;
  }
  return error(StatusCode::kUnimplemented,
               "config.json: model_type \"{}\" is not supported; supported are {}", *model_type,
               fmt::join(supported_model_types(), ", "));
}

StatusOr<ModelProfile> read_model_profile(std::string_view config_json) {
  MESH_ASSIGN_OR_RETURN(DecoderSpec spec, read_decoder_spec(config_json));
  return std::move(spec.profile);
}

}  // namespace mesh::engine
