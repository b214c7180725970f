#include <cmath>

#include "node/engine/models/arch/arch.h"
#include "node/engine/models/config_checks.h"

namespace mesh::engine::arch {
namespace {

/// Conv1D: on disk [in, out] with y = x·W + b.
MatrixPlan conv1d(const std::string& name, std::uint64_t in, std::uint64_t out) {
  return {.weights = {{name + ".weight", {in, out}}},
          .biases = {{name + ".bias", {out}}},
          .transposed = true,
          .out = out,
          .in = in};
}

NormPlan layer_norm(const std::string& name, std::uint64_t size) {
  return {{name + ".weight", {size}}, TensorSource{name + ".bias", {size}}};
}

LayerPlan plan_layer(const DecoderSpec& spec, std::uint32_t layer) {
  const std::string root = fmt::format("h.{}.", layer);
  const std::uint64_t hidden = spec.hidden;
  LayerPlan plan;
  plan.attention_norm = layer_norm(root + "ln_1", hidden);
  plan.qkv = conv1d(root + "attn.c_attn", hidden, 3 * hidden);
  plan.attention_out = conv1d(root + "attn.c_proj", hidden, hidden);
  plan.mlp_norm = layer_norm(root + "ln_2", hidden);
  plan.mlp_in = conv1d(root + "mlp.c_fc", hidden, spec.intermediate);
  plan.mlp_out = conv1d(root + "mlp.c_proj", spec.intermediate, hidden);
  return plan;
}

StatusOr<DecoderSpec> read(const json::View& config) {
  MESH_RETURN_IF_ERROR(refuse_foreign_keys(config));
  DecoderSpec spec;
  spec.profile.model_type = "gpt2";
  MESH_ASSIGN_OR_RETURN(spec.profile.stated_dtype, stated_dtype(config));
  MESH_ASSIGN_OR_RETURN(const std::uint32_t layers, size_field(config, "n_layer", kMaxLayers));
  MESH_ASSIGN_OR_RETURN(spec.hidden, size_field(config, "n_embd", kMaxHidden));
  MESH_ASSIGN_OR_RETURN(spec.query_heads, size_field(config, "n_head", kMaxHeads));
  MESH_ASSIGN_OR_RETURN(spec.vocab, size_field(config, "vocab_size", kMaxVocab));
  MESH_ASSIGN_OR_RETURN(spec.profile.max_positions, size_field(config, "n_positions", kMaxPositions));
  MESH_ASSIGN_OR_RETURN(spec.intermediate,
                        size_field_or(config, "n_inner", kMaxIntermediate, 4 * spec.hidden));
  if (spec.hidden % spec.query_heads != 0) {
    return config.error(
        fmt::format("n_embd ({}) is not a multiple of n_head ({})", spec.hidden, spec.query_heads));
  }
  spec.kv_heads = spec.query_heads;
  spec.head_dim = spec.hidden / spec.query_heads;
  if (spec.head_dim > kMaxHeadDim)
    return config.error(fmt::format("heads of {} values are too large", spec.head_dim));
  spec.norm = NormKind::kLayerNorm;
  spec.gated_mlp = false;
  MESH_ASSIGN_OR_RETURN(spec.norm_epsilon, epsilon_field(config, "layer_norm_epsilon", 1e-5));
  MESH_ASSIGN_OR_RETURN(spec.activation, activation_field(config, "activation_function", "gelu_new"));
  if (spec.activation == Activation::kSilu)
    return config.error("activation_function: needs one of the gelu kinds");
  MESH_ASSIGN_OR_RETURN(spec.profile.tied_head, config.get_or<bool>("tie_word_embeddings", true));
  MESH_ASSIGN_OR_RETURN(const bool scaled, config.get_or<bool>("scale_attn_weights", true));
  MESH_ASSIGN_OR_RETURN(const bool by_layer, config.get_or<bool>("scale_attn_by_inverse_layer_idx", false));

  for (std::uint32_t i = 0; i < layers; ++i) {
    const float scale = scaled ? 1 / std::sqrt(static_cast<float>(spec.head_dim)) : 1;
    spec.layers.push_back({0, by_layer ? scale / static_cast<float>(i + 1) : scale});
    spec.layer_plans.push_back(plan_layer(spec, i));
  }
  spec.embedding_plan.tokens = {"wte.weight", {spec.vocab, spec.hidden}};
  spec.embedding_plan.positions = TensorSource{"wpe.weight", {spec.profile.max_positions, spec.hidden}};
  spec.head_plan.norm = layer_norm("ln_f", spec.hidden);
  spec.head_plan.matrix = spec.profile.tied_head
                              ? spec.embedding_plan.tokens
                              : TensorSource{"lm_head.weight", {spec.vocab, spec.hidden}, false};
  spec.prefixes = {"transformer.", ""};
  spec.ignorable = {"*.attn.bias", "*.attn.masked_bias"};
  if (spec.profile.tied_head) spec.ignorable.push_back("lm_head.weight");
  return spec;
}

}  // namespace

const Architecture kGpt2{"gpt2", read};

}  // namespace mesh::engine::arch
