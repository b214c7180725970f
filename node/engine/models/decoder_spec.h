#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "node/engine/models/model_profile.h"
#include "node/engine/models/quantization_config.h"

namespace mesh::engine {

enum class NormKind : std::uint8_t { kRms, kLayerNorm };
enum class Activation : std::uint8_t {
  kSilu,
  kGeluTanh,  ///< 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
  kGeluErf,   ///< x·Φ(x)
};

/// A tensor as it lies on disk. DecoderSpec::prefixes come before its name, unless it stands outside of them.
struct TensorSource {
  std::string name;
  std::vector<std::uint64_t> shape;
  bool prefixed = true;
};

/// A matrix [out, in] in memory, made of one or more tensors stacked by rows.
struct MatrixPlan {
  std::vector<TensorSource> weights;  ///< each [out_i, in], or [in, out_i] when transposed
  std::vector<TensorSource> biases;   ///< [out_i] each, as many as weights, or none
  bool transposed = false;
  std::uint64_t out = 0;
  std::uint64_t in = 0;
};

struct NormPlan {
  TensorSource weight;
  std::optional<TensorSource> bias;
};

/// Which tensors make one decoder layer.
struct LayerPlan {
  NormPlan attention_norm;
  MatrixPlan qkv;                                ///< rows: query heads, then key heads, then value heads
  std::optional<NormPlan> query_norm, key_norm;  ///< [head_dim], per head, before rotation
  MatrixPlan attention_out;
  NormPlan mlp_norm;
  MatrixPlan mlp_in;  ///< gated: gate rows, then up rows
  MatrixPlan mlp_out;
};

struct EmbeddingPlan {
  TensorSource tokens;                    ///< [V, H]
  std::optional<TensorSource> positions;  ///< [P, H], added to the token's row
};

struct HeadPlan {
  NormPlan norm;
  TensorSource matrix;  ///< [V, H]; the embedding's tensor when tied
};

/// Rotation of the first `dims` values of each query and key head, pair (i, i + dims/2) by position ·
/// frequency i.
struct RopeSpec {
  std::uint32_t dims = 0;          ///< 0: no rotation
  std::vector<float> frequencies;  ///< [dims/2]
  float attention_scale = 1;       ///< multiplies cos and sin (YaRN)
};

struct LayerSpec {
  std::uint32_t window = 0;   ///< key j is visible to query i iff i − window < j ≤ i; 0: all j ≤ i
  float attention_scale = 1;  ///< multiplies query · key
};

/// A decoder-only transformer of pre-norm layers; everything that the layers need to compute.
struct DecoderSpec {
  ModelProfile profile;
  std::uint32_t hidden = 0, vocab = 0, intermediate = 0;
  std::uint32_t query_heads = 0, kv_heads = 0, head_dim = 0;
  NormKind norm = NormKind::kRms;
  float norm_epsilon = 0;
  Activation activation = Activation::kSilu;
  bool gated_mlp = true;
  RopeSpec rope;
  std::vector<LayerSpec> layers;

  EmbeddingPlan embedding_plan;
  std::vector<LayerPlan> layer_plans;
  HeadPlan head_plan;
  /// What a checkpoint may put before prefixed names; the first that fits is used.
  std::vector<std::string> prefixes;
  /// Names that may be left unread, with or without prefix: an exact name, or "*" + suffix.
  std::vector<std::string> ignorable;
  /// Of a checkpoint that is quantised itself; with prefixes.
  KeptModules kept_modules;

  /// Whether `source`, a module's weight, is of a module that the checkpoint keeps as it is.
  bool keeps(const TensorSource& source) const;
};

/// Fills `profile` from the plans and checks that they agree with each other (a programmer's error if not).
void finish_profile(DecoderSpec& spec);

/// The same errors as read_model_profile.
StatusOr<DecoderSpec> read_decoder_spec(std::string_view config_json);

}  // namespace mesh::engine
