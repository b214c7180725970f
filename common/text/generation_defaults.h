#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"

namespace mesh {

/// What a model's files say about generating: when to stop and how to sample if a request does not say.
struct GenerationDefaults {
  std::vector<TokenId> eos_ids;  ///< any of them ends the text; sorted, may be empty
  std::optional<TokenId> bos_id;
  std::optional<TokenId> pad_id;
  /// Absent where the files do not say, and where generation_config says do_sample: false.
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  bool do_sample = false;  ///< false also when the files do not say

  /// From the contents of config.json and generation_config.json (empty: the model has none). The second
  /// overrides the first field by field; eos_token_id may be a number or a list; config.json may nest
  /// text_config. kInvalidArgument: broken JSON, or a field of the wrong type or range, named.
  static StatusOr<GenerationDefaults> parse(std::string_view config_json,
                                            std::string_view generation_config_json);
};

}  // namespace mesh
