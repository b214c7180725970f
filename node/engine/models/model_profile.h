#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"

namespace mesh::engine {

/// How the matrices of a shard lie in memory. Norm weights and biases are float32 in every format. kInt8,
/// kNf4, kFp8: the layers' matrices (docs/engine-contract.md says what becomes of the others).
enum class WeightFormat : std::uint8_t { kBfloat16, kFloat32, kInt8, kNf4, kFp8 };

/// Reads "bfloat16" or "float32", what can be computed with; an error lists both.
StatusOr<WeightFormat> parse_weight_format(std::string_view name);
std::string_view to_string(WeightFormat format);

/// What a model's weights are quantised to, as settings, directives and identities name it. "bfloat16" means
/// that they are not: they are kept as the compute type says.
enum class Quantization : std::uint8_t { kNone, kInt8, kNf4, kFp8 };

/// Reads "bfloat16", "int8", "nf4" or "fp8"; an error lists them.
StatusOr<Quantization> parse_quantization(std::string_view name);
std::string_view to_string(Quantization quantization);

/// Sizes of one part of a model, in values, not bytes.
struct PartSize {
  std::uint64_t matrix_values = 0;  ///< stored in the weight format
  std::uint64_t vector_values = 0;  ///< norm weights, biases: always float32
  std::uint64_t kv_values = 0;  ///< KV cache values per token (keys and values together); 0 outside of layers
  std::uint64_t int8_bytes = 0, nf4_bytes = 0, fp8_bytes = 0;  ///< of the matrices when the model is that

  std::uint64_t matrix_bytes(WeightFormat format) const;
  std::uint64_t bytes(WeightFormat format) const;
};

/// What planner, tracker and node need to know of a model. Made from config.json alone, without torch and
/// without the weights.
struct ModelProfile {
  std::string model_type;
  std::uint32_t hidden = 0;
  std::uint32_t vocab = 0;
  Position max_positions = 0;
  std::vector<PartSize> layers;
  PartSize embedding;
  PartSize head;           ///< final norm and lm_head; counts a matrix of its own when tied, too
  bool tied_head = false;  ///< lm_head is the embedding matrix; a shard with both holds it once
  std::vector<std::uint32_t>
      split_points;  ///< layer borders where the model may be cut, ascending, 0 and N among them
  /// Data type that config.json states for the weights on disk ("bfloat16", "float16", "float32"), or empty.
  std::string stated_dtype;
  /// What the checkpoint itself is quantised to.
  Quantization stored_quantization = Quantization::kNone;

  std::uint32_t layer_count() const { return static_cast<std::uint32_t>(layers.size()); }
  /// True for ranges that lie in the model and whose ends are split points. [k, k) is fine.
  bool allows(const LayerRange& range) const;
  /// What the model is quantised to when `asked` is: a quantised checkpoint stays what it is.
  /// kInvalidArgument when it is asked to be another.
  StatusOr<Quantization> quantization(Quantization asked) const;
  /// How matrices are kept under a compute type and quantization() of it: bfloat16 also under float32 when
  /// they are bfloat16 on disk.
  WeightFormat matrix_format(WeightFormat compute, Quantization quantization = Quantization::kNone) const;
  /// Bytes of the weights of a shard. A tied matrix counts once when the shard has embedding and head.
  std::uint64_t weight_bytes(const LayerRange& range, bool embedding, bool head, WeightFormat format) const;
  /// KV bytes of one token over the layers of `range`; KV values have 4 bytes in float32, 2 in bfloat16.
  std::uint64_t kv_bytes_per_token(const LayerRange& range, WeightFormat format) const;
};

/// Reads the contents of config.json. Errors: broken JSON, an unknown model_type (the message lists the
/// supported ones), a field that is missing or of a wrong type, a field that changes the mathematics in a way
/// that the family does not know. Ids that end a text are in common/text's GenerationDefaults.
StatusOr<ModelProfile> read_model_profile(std::string_view config_json);

/// The model_type values that can be loaded, in alphabetical order.
std::vector<std::string_view> supported_model_types();

}  // namespace mesh::engine
