#include "node/engine/models/config_checks.h"

#include <cmath>

namespace mesh::engine {
namespace {

bool is_neutral(const json::Value& value) {
  switch (value.kind()) {
    case boost::json::kind::null:
      return true;
    case boost::json::kind::bool_:
      return !value.as_bool();
    case boost::json::kind::int64:
      return value.as_int64() == 0 || value.as_int64() == 1;
    case boost::json::kind::uint64:
      return value.as_uint64() <= 1;
    case boost::json::kind::double_:
      return value.as_double() == 0 || value.as_double() == 1;
    case boost::json::kind::string:
      return value.as_string().empty();
    case boost::json::kind::array:
      return value.as_array().empty();
    case boost::json::kind::object:
      return value.as_object().empty();
  }
  return false;
}

}  // namespace

Status refuse_keys(const json::View& config, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    MESH_ASSIGN_OR_RETURN(const std::optional<json::View> field, config.find(key));
    if (field && !is_neutral(field->value())) {
      return field->error(
          fmt::format("changes the mathematics in a way that this family does not know (value {})",
                      json::serialize(field->value()).substr(0, 80)));
    }
  }
  return absl::OkStatus();
}

Status refuse_foreign_keys(const json::View& config) {
  return refuse_keys(config, {"attn_logit_softcapping",
                              "final_logit_softcapping",
                              "embedding_multiplier",
                              "residual_multiplier",
                              "attention_multiplier",
                              "logits_scaling",
                              "logit_scale",
                              "query_pre_attn_scalar",
                              "clip_qkv",
                              "no_rope_layers",
                              "num_experts",
                              "num_local_experts",
                              "n_routed_experts",
                              "use_qk_norm",
                              "qk_layernorm",
                              "is_encoder_decoder",
                              "add_cross_attention",
                              "use_bidirectional_attention",
                              "attention_chunk_size",
                              "sliding_window_pattern",
                              "norm_type",
                              "parallel_attn",
                              "attn_output_gate"});
}

StatusOr<std::uint32_t> size_field(const json::View& config, std::string_view key, std::uint32_t high) {
  MESH_ASSIGN_OR_RETURN(const json::View field, config.field(key));
  MESH_ASSIGN_OR_RETURN(const std::uint32_t value, field.as<std::uint32_t>());
  if (value < 1 || value > high) return field.error(fmt::format("must lie in 1 … {}, is {}", high, value));
  return value;
}

StatusOr<std::uint32_t> size_field_or(const json::View& config, std::string_view key, std::uint32_t high,
                                      std::uint32_t fallback) {
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> field, config.find(key));
  if (!field) return fallback;
  return size_field(config, key, high);
}

StatusOr<std::string> stated_dtype(const json::View& config) {
  MESH_ASSIGN_OR_RETURN(const std::string older, config.get_or<std::string>("torch_dtype", ""));
  MESH_ASSIGN_OR_RETURN(std::string dtype, config.get_or<std::string>("dtype", older));
  if (dtype.starts_with("torch.")) dtype.erase(0, 6);
  return dtype;
}

StatusOr<Activation> activation_field(const json::View& config, std::string_view key,
                                      std::string_view fallback) {
  MESH_ASSIGN_OR_RETURN(const std::string name, config.get_or<std::string>(key, std::string(fallback)));
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  if (name == "gelu") return Activation::kGeluErf;
  return config.error(fmt::format(
      "{}: \"{}\" is not supported; supported are silu, gelu, gelu_new, gelu_pytorch_tanh", key, name));
}

StatusOr<float> epsilon_field(const json::View& config, std::string_view key, double fallback) {
  MESH_ASSIGN_OR_RETURN(const float value, config.get_or<float>(key, static_cast<float>(fallback)));
  if (!(value > 0) || !std::isfinite(value)) return config.error(fmt::format("{}: must be above 0", key));
  return value;
}

}  // namespace mesh::engine
