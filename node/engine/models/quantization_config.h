#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/json/view.h"
#include "node/engine/models/model_profile.h"

namespace mesh::engine {

/// The modules that a quantised checkpoint keeps as they are: its modules_to_not_convert, ignored_layers,
/// ignore or llm_int8_skip_modules. A name means the module itself, all below it, and every module whose path
/// ends with it ("lm_head", "model.layers.0", "mlp.gate"). compressed-tensors' "re:…" is a regular expression
/// that must fit a module's path from its beginning on; of such expressions '.', '.*', "\.", '^' and '$' are
/// read.
class KeptModules {
 public:
  /// Adds the names of a list; an error names the expression that is not read.
  Status add(const json::View& list);
  bool contains(std::string_view module) const;
  bool empty() const { return names_.empty() && patterns_.empty(); }

 private:
  /// A run of any characters, any single one, or this one; the pattern fits a path as a whole.
  struct Step {
    enum class Kind : std::uint8_t { kRun, kAny, kThis } kind;
    char character = 0;
  };
  using Pattern = std::vector<Step>;
  static StatusOr<Pattern> read_pattern(const json::View& entry, std::string_view text);
  static bool fits(const Pattern& pattern, std::string_view module);

  std::set<std::string, std::less<>> names_;
  std::vector<Pattern> patterns_;
};

/// What a checkpoint's own weights are quantised to.
struct StoredWeights {
  Quantization quantization = Quantization::kNone;
  KeptModules kept;
};

/// What quantization_config says; kNone when absent. Known are bitsandbytes' int8 and nf4, and FP8 with
/// scales for blocks of 128 × 128, for rows or for whole matrices ("fp8", "fbgemm_fp8", compressed-tensors'
/// "float-quantized"). How activations would be quantised is of no account here.
StatusOr<StoredWeights> read_stored_weights(const json::View& config);

}  // namespace mesh::engine
