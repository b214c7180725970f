#pragma once

#include "common/json/view.h"
#include "node/engine/models/decoder_spec.h"

namespace mesh::engine {

enum class Presence : std::uint8_t { kNever, kAlways, kByConfig };

/// Where the families of the llama class differ.
struct LlamaTraits {
  Presence qkv_bias = Presence::kNever;     ///< kByConfig: attention_bias
  Presence output_bias = Presence::kNever;  ///< kByConfig: attention_bias
  Presence mlp_bias = Presence::kNever;     ///< kByConfig: mlp_bias
  bool qk_norm = false;
  std::uint32_t default_head_dim = 0;  ///< 0: hidden_size / num_attention_heads
  Position default_max_positions = 0;
  /// Windows of the layers (0: none), by the family's own keys.
  StatusOr<std::vector<std::uint32_t>> (*windows)(const json::View& config, std::uint32_t layers) = nullptr;
};

/// RMSNorm, rotary GQA attention, gated MLP: names and shapes of Llama checkpoints.
StatusOr<DecoderSpec> read_llama_class(const json::View& config, const LlamaTraits& traits);

/// All layers see everything; layer_types may only say so.
StatusOr<std::vector<std::uint32_t>> no_windows(const json::View& config, std::uint32_t layers);
/// Qwen's rule: use_sliding_window, then sliding_window on layer_types' sliding_attention layers, or on those
/// from max_window_layers on.
StatusOr<std::vector<std::uint32_t>> qwen_windows(const json::View& config, std::uint32_t layers);
/// layer_types as "is sliding" per layer; nothing when absent. Other kinds or another length are an error.
StatusOr<std::optional<std::vector<bool>>> sliding_layers(const json::View& config, std::uint32_t layers);

}  // namespace mesh::engine
