#include "node/engine/models/llama_class.h"

#include <cmath>

#include "node/engine/models/config_checks.h"
#include "node/engine/models/rope_config.h"

namespace mesh::engine {
namespace {

struct Biases {
  bool qkv = false;
  bool output = false;
  bool mlp = false;
};

StatusOr<bool> present(const json::View& config, Presence presence, std::string_view key) {
  if (presence == Presence::kByConfig) return config.get_or<bool>(key, false);
  return presence == Presence::kAlways;
}

StatusOr<Biases> read_biases(const json::View& config, const LlamaTraits& traits) {
  Biases biases;
  MESH_ASSIGN_OR_RETURN(biases.qkv, present(config, traits.qkv_bias, "attention_bias"));
  MESH_ASSIGN_OR_RETURN(biases.output, present(config, traits.output_bias, "attention_bias"));
  MESH_ASSIGN_OR_RETURN(biases.mlp, present(config, traits.mlp_bias, "mlp_bias"));
  if (traits.qkv_bias == Presence::kNever) MESH_RETURN_IF_ERROR(refuse_keys(config, {"attention_bias"}));
  if (traits.mlp_bias == Presence::kNever) MESH_RETURN_IF_ERROR(refuse_keys(config, {"mlp_bias"}));
  return biases;
}

/// Matrices [out_i, in] of `names`, stacked.
MatrixPlan stacked(const std::string& prefix,
                   std::initializer_list<std::pair<const char*, std::uint64_t>> names, std::uint64_t in,
                   bool bias) {
  MatrixPlan plan;
  plan.in = in;
  for (const auto& [name, out] : names) {
    plan.weights.push_back({prefix + name + ".weight", {out, in}});
    if (bias) plan.biases.push_back({prefix + name + ".bias", {out}});
    plan.out += out;
  }
  return plan;
}

NormPlan rms(std::string name, std::uint64_t size) {
  return {{.name = std::move(name), .shape = {size}}, {}};
}

LayerPlan plan_layer(const DecoderSpec& spec, std::uint32_t layer, const Biases& biases, bool qk_norm) {
  const std::string root = fmt::format("layers.{}.", layer);
  const std::string attention = root + "self_attn.";
  const std::uint64_t hidden = spec.hidden, inner = spec.intermediate;
  const std::uint64_t queries = std::uint64_t{spec.query_heads} * spec.head_dim;
  const std::uint64_t keys = std::uint64_t{spec.kv_heads} * spec.head_dim;
  LayerPlan plan;
  plan.attention_norm = rms(root + "input_layernorm.weight", hidden);
  plan.mlp_norm = rms(root + "post_attention_layernorm.weight", hidden);
  plan.qkv =
      stacked(attention, {{"q_proj", queries}, {"k_proj", keys}, {"v_proj", keys}}, hidden, biases.qkv);
  plan.attention_out = stacked(attention, {{"o_proj", hidden}}, queries, biases.output);
  plan.mlp_in = stacked(root + "mlp.", {{"gate_proj", inner}, {"up_proj", inner}}, hidden, biases.mlp);
  plan.mlp_out = stacked(root + "mlp.", {{"down_proj", hidden}}, inner, biases.mlp);
  if (qk_norm) {
    plan.query_norm = rms(attention + "q_norm.weight", spec.head_dim);
    plan.key_norm = rms(attention + "k_norm.weight", spec.head_dim);
  }
  return plan;
}

Status read_heads(const json::View& config, const LlamaTraits& traits, DecoderSpec& spec) {
  MESH_ASSIGN_OR_RETURN(spec.query_heads, size_field(config, "num_attention_heads", kMaxHeads));
  MESH_ASSIGN_OR_RETURN(spec.kv_heads,
                        size_field_or(config, "num_key_value_heads", kMaxHeads, spec.query_heads));
  if (spec.query_heads % spec.kv_heads != 0) {
    return config.error(fmt::format("num_attention_heads ({}) is not a multiple of num_key_value_heads ({})",
                                    spec.query_heads, spec.kv_heads));
  }
  const std::uint32_t fallback =
      traits.default_head_dim != 0 ? traits.default_head_dim : spec.hidden / spec.query_heads;
  MESH_ASSIGN_OR_RETURN(spec.head_dim, size_field_or(config, "head_dim", kMaxHeadDim, fallback));
  if (spec.head_dim < 1 || spec.head_dim > kMaxHeadDim) {
    return config.error(fmt::format("hidden_size / num_attention_heads = {} is no head size", spec.head_dim));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<DecoderSpec> read_llama_class(const json::View& config, const LlamaTraits& traits) {
  MESH_RETURN_IF_ERROR(refuse_foreign_keys(config));
  DecoderSpec spec;
  MESH_ASSIGN_OR_RETURN(spec.profile.model_type, config.get<std::string>("model_type"));
  MESH_ASSIGN_OR_RETURN(spec.profile.stated_dtype, stated_dtype(config));
  MESH_ASSIGN_OR_RETURN(const std::uint32_t layers, size_field(config, "num_hidden_layers", kMaxLayers));
  MESH_ASSIGN_OR_RETURN(spec.hidden, size_field(config, "hidden_size", kMaxHidden));
  MESH_ASSIGN_OR_RETURN(spec.vocab, size_field(config, "vocab_size", kMaxVocab));
  MESH_ASSIGN_OR_RETURN(spec.intermediate, size_field(config, "intermediate_size", kMaxIntermediate));
  MESH_ASSIGN_OR_RETURN(
      spec.profile.max_positions,
      size_field_or(config, "max_position_embeddings", kMaxPositions, traits.default_max_positions));
  MESH_RETURN_IF_ERROR(read_heads(config, traits, spec));
  MESH_ASSIGN_OR_RETURN(spec.norm_epsilon, epsilon_field(config, "rms_norm_eps", 1e-6));
  MESH_ASSIGN_OR_RETURN(spec.activation, activation_field(config, "hidden_act", "silu"));
  if (spec.activation != Activation::kSilu)
    return config.error("hidden_act: this family's gated MLP needs silu");
  MESH_ASSIGN_OR_RETURN(spec.profile.tied_head, config.get_or<bool>("tie_word_embeddings", false));
  MESH_ASSIGN_OR_RETURN(spec.rope, read_rope(config, spec.head_dim, spec.profile.max_positions));
  MESH_ASSIGN_OR_RETURN(const Biases biases, read_biases(config, traits));
  MESH_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> windows, traits.windows(config, layers));

  const float scale = 1 / std::sqrt(static_cast<float>(spec.head_dim));
  for (std::uint32_t i = 0; i < layers; ++i) {
    spec.layers.push_back({windows[i], scale});
    spec.layer_plans.push_back(plan_layer(spec, i, biases, traits.qk_norm));
  }
  spec.embedding_plan.tokens = {"embed_tokens.weight", {spec.vocab, spec.hidden}};
  spec.head_plan.norm = rms("norm.weight", spec.hidden);
  spec.head_plan.matrix = spec.profile.tied_head
                              ? spec.embedding_plan.tokens
                              : TensorSource{"lm_head.weight", {spec.vocab, spec.hidden}, false};
  spec.prefixes = {"model.", "model.language_model.", "language_model.model.", ""};
  spec.ignorable = {"*.rotary_emb.inv_freq"};
  if (spec.profile.tied_head) spec.ignorable.push_back("lm_head.weight");
  return spec;
}

StatusOr<std::optional<std::vector<bool>>> sliding_layers(const json::View& config, std::uint32_t layers) {
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> field, config.find("layer_types"));
  if (!field) return std::optional<std::vector<bool>>{};
  MESH_ASSIGN_OR_RETURN(const std::vector<json::View> kinds, field->elements());
  if (kinds.size() != layers)
    return field->error(fmt::format("has {} entries for {} layers", kinds.size(), layers));
  std::vector<bool> sliding;
  for (const json::View& kind : kinds) {
    MESH_ASSIGN_OR_RETURN(const std::string name, kind.as<std::string>());
    if (name != "full_attention" && name != "sliding_attention") {
      return kind.error(
          fmt::format("\"{}\" is not supported; supported are full_attention, sliding_attention", name));
    }
    sliding.push_back(name == "sliding_attention");
  }
  return std::optional(std::move(sliding));
}

StatusOr<std::vector<std::uint32_t>> no_windows(const json::View& config, std::uint32_t layers) {
  MESH_ASSIGN_OR_RETURN(const std::optional<std::vector<bool>> sliding, sliding_layers(config, layers));
  for (std::uint32_t i = 0; sliding && i < layers; ++i) {
    if ((*sliding)[i]) return config.error("layer_types: this family has no sliding_attention");
  }
  return std::vector<std::uint32_t>(layers, 0);
}

StatusOr<std::vector<std::uint32_t>> qwen_windows(const json::View& config, std::uint32_t layers) {
  MESH_ASSIGN_OR_RETURN(const bool used, config.get_or<bool>("use_sliding_window", false));
  MESH_ASSIGN_OR_RETURN(const std::optional<std::vector<bool>> sliding, sliding_layers(config, layers));
  std::uint32_t window = 0;
  if (used) {
    const auto& object = config.value().as_object();
    const std::uint32_t fallback = object.contains("sliding_window") ? 0 : 4096;
    MESH_ASSIGN_OR_RETURN(window, size_field_or(config, "sliding_window", kMaxPositions, fallback));
  }
  MESH_ASSIGN_OR_RETURN(const std::uint32_t first, config.get_or<std::uint32_t>("max_window_layers", 28));
  std::vector<std::uint32_t> windows(layers, 0);
  for (std::uint32_t i = 0; i < layers; ++i) {
    const bool slides = sliding ? (*sliding)[i] : i >= first;
    if (slides && window == 0 && sliding)
      return config.error("layer_types: sliding_attention without sliding_window");
    if (slides) windows[i] = window;
  }
  return windows;
}

}  // namespace mesh::engine
