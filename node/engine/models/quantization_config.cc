#include "node/engine/models/quantization_config.h"

#include "node/engine/models/config_checks.h"

namespace mesh::engine {
namespace {

constexpr std::size_t kMostPatterns = 64;
constexpr std::string_view kExpression = "re:";
const std::vector<std::uint32_t> kBlock = {128, 128};

StatusOr<StoredWeights> read_bitsandbytes(const json::View& config) {
  StoredWeights stored;
  MESH_ASSIGN_OR_RETURN(const bool eight, config.get_or<bool>("load_in_8bit", false));
  MESH_ASSIGN_OR_RETURN(const auto kept, config.find("llm_int8_skip_modules"));
  if (kept) MESH_RETURN_IF_ERROR(stored.kept.add(*kept));
  stored.quantization = eight ? Quantization::kInt8 : Quantization::kNf4;
  if (eight) return stored;
  MESH_ASSIGN_OR_RETURN(const std::string type, config.get_or<std::string>("bnb_4bit_quant_type", "fp4"));
  MESH_ASSIGN_OR_RETURN(const std::string unit,
                        config.get_or<std::string>("bnb_4bit_quant_storage", "uint8"));
  if (type != "nf4" || unit != "uint8") {
    return config.error(
        fmt::format("bitsandbytes weights of type {} stored as {} are not supported; "
                    "supported are int8, and nf4 stored as uint8",
                    type, unit));
  }
  return stored;
}

/// `field`: [rows, columns] of a block; null means that there are none.
Status check_block(const json::View& config, std::string_view field) {
  MESH_ASSIGN_OR_RETURN(const auto block, config.find(field));
  if (!block) return absl::OkStatus();
  MESH_ASSIGN_OR_RETURN(const auto sides, config.get_list<std::uint32_t>(field));
  if (sides == kBlock) return absl::OkStatus();
  return block->error(
      fmt::format("FP8 scales for blocks of {} are not supported; supported are blocks of "
                  "[128, 128], and scales for rows or whole matrices",
                  json::serialize(block->value()).substr(0, 80)));
}

StatusOr<StoredWeights> read_fp8(const json::View& config) {
  StoredWeights stored{Quantization::kFp8, {}};
  MESH_RETURN_IF_ERROR(check_block(config, "weight_block_size"));
  MESH_ASSIGN_OR_RETURN(const std::string format, config.get_or<std::string>("fmt", "e4m3"));
  if (format != "e4m3") {
    return config.error(
        fmt::format("fmt: FP8 weights as \"{}\" are not supported; supported is e4m3", format));
  }
  for (const std::string_view key : {"modules_to_not_convert", "ignored_layers"}) {
    MESH_ASSIGN_OR_RETURN(const auto kept, config.find(key));
    if (kept) MESH_RETURN_IF_ERROR(stored.kept.add(*kept));
  }
  return stored;
}

/// One entry of config_groups.
Status check_group(const json::View& group) {
  MESH_ASSIGN_OR_RETURN(const json::View weights, group.field("weights"));
  MESH_ASSIGN_OR_RETURN(const auto bits, weights.get_or<std::uint32_t>("num_bits", 8));
  MESH_ASSIGN_OR_RETURN(const std::string type, weights.get_or<std::string>("type", "int"));
  MESH_ASSIGN_OR_RETURN(const std::string strategy, weights.get_or<std::string>("strategy", "tensor"));
  MESH_ASSIGN_OR_RETURN(const bool symmetric, weights.get_or<bool>("symmetric", true));
  const bool known = strategy == "channel" || strategy == "tensor" || strategy == "block";
  if (bits != 8 || type != "float" || !known || !symmetric) {
    return weights.error(
        fmt::format("{} weights of {} bits with {}{} scales are not supported; supported are float weights "
                    "of 8 bits with symmetric channel, tensor or block scales",
                    type, bits, symmetric ? "" : "asymmetric ", strategy));
  }
  return strategy == "block" ? check_block(weights, "block_structure") : absl::OkStatus();
}

StatusOr<StoredWeights> read_compressed_tensors(const json::View& config) {
  MESH_ASSIGN_OR_RETURN(const std::string format, config.get_or<std::string>("format", "unnamed"));
  if (format != "float-quantized") {
    return config.error(
        fmt::format("compressed-tensors weights of format \"{}\" are not supported; supported is "
                    "\"float-quantized\" (FP8), or use a bfloat16 checkpoint",
                    format));
  }
  MESH_RETURN_IF_ERROR(refuse_keys(config, {"transform_config"}));
  MESH_ASSIGN_OR_RETURN(const json::View groups, config.field("config_groups"));
  MESH_ASSIGN_OR_RETURN(const json::Object list, groups.as<json::Object>());
  for (const auto& [name, group] : list) {
    MESH_ASSIGN_OR_RETURN(const json::View view, groups.field(name));
    MESH_RETURN_IF_ERROR(check_group(view));
  }
  StoredWeights stored{Quantization::kFp8, {}};
  MESH_ASSIGN_OR_RETURN(const auto kept, config.find("ignore"));
  if (kept) MESH_RETURN_IF_ERROR(stored.kept.add(*kept));
  return stored;
}

}  // namespace

Status KeptModules::add(const json::View& list) {
  MESH_ASSIGN_OR_RETURN(const std::vector<json::View> entries, list.elements());
  for (const json::View& entry : entries) {
    MESH_ASSIGN_OR_RETURN(std::string text, entry.as<std::string>());
    if (!text.starts_with(kExpression)) {
      names_.insert(std::move(text));
      continue;
    }
    if (patterns_.size() == kMostPatterns)
      return entry.error(fmt::format("at most {} expressions are read", kMostPatterns));
    MESH_ASSIGN_OR_RETURN(Pattern pattern,
                          read_pattern(entry, std::string_view(text).substr(kExpression.size())));
    patterns_.push_back(std::move(pattern));
  }
  return absl::OkStatus();
}

bool KeptModules::contains(std::string_view module) const {
  if (names_.contains(module)) return true;
  for (std::size_t dot = module.find('.'); dot != std::string_view::npos; dot = module.find('.', dot + 1)) {
    if (names_.contains(module.substr(0, dot)) || names_.contains(module.substr(dot + 1))) return true;
  }
  for (const Pattern& pattern : patterns_) {
    if (fits(pattern, module)) return true;
  }
  return false;
}

StatusOr<KeptModules::Pattern> KeptModules::read_pattern(const json::View& entry, std::string_view text) {
  constexpr std::string_view kUnread = "[](){}+?|*^$\\";
  Pattern pattern;
  bool whole = false;
  for (std::size_t i = text.starts_with('^') ? 1 : 0; i < text.size(); ++i) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (text[i] == '.') {
      pattern.push_back({next == '*' ? Step::Kind::kRun : Step::Kind::kAny});
      i += next == '*' ? 1 : 0;
    } else if (text[i] == '\\' && next == '.') {
      pattern.push_back({Step::Kind::kThis, '.'});
      ++i;
    } else if (text[i] == '$' && i + 1 == text.size()) {
      whole = true;
    } else if (kUnread.find(text[i]) != std::string_view::npos) {
      return entry.error(
          fmt::format("\"{}\" is no expression that is read here: it may hold '.', '.*', "
                      "\"\\.\", '^' and '$' beside plain characters; name the modules instead",
                      text.substr(0, 80)));
    } else {
      pattern.push_back({Step::Kind::kThis, text[i]});
    }
  }
  if (!whole) pattern.push_back({Step::Kind::kRun});
  return pattern;
}

// Where a character does not fit, the last run takes one more: at most |pattern| · |module| steps.
bool KeptModules::fits(const Pattern& pattern, std::string_view module) {
  constexpr std::size_t kNone = std::string_view::npos;
  std::size_t step = 0, at = 0, run = kNone, run_end = 0;
  while (at < module.size()) {
    if (step < pattern.size() && pattern[step].kind == Step::Kind::kRun) {
      run = step++;
      run_end = at;
    } else if (step < pattern.size() &&
               (pattern[step].kind == Step::Kind::kAny || pattern[step].character == module[at])) {
      ++step, ++at;
    } else if (run != kNone) {
      step = run + 1;
      at = ++run_end;
    } else {
      return false;
    }
  }
  while (step < pattern.size() && pattern[step].kind == Step::Kind::kRun) ++step;
  return step == pattern.size();
}

StatusOr<StoredWeights> read_stored_weights(const json::View& config) {
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> quantised, config.find("quantization_config"));
  if (!quantised) return StoredWeights{};
  MESH_ASSIGN_OR_RETURN(const std::string method, quantised->get_or<std::string>("quant_method", "unnamed"));
  if (method == "bitsandbytes") return read_bitsandbytes(*quantised);
  if (method == "fp8" || method == "fbgemm_fp8") return read_fp8(*quantised);
  if (method == "compressed-tensors") return read_compressed_tensors(*quantised);
  return quantised->error(
      fmt::format("weights quantised with \"{}\" are not supported; use a bfloat16, float16 or float32 "
                  "checkpoint, one of bitsandbytes (int8, nf4), or one in FP8 (fp8, fbgemm_fp8, "
                  "compressed-tensors float-quantized)",
                  method));
}

}  // namespace mesh::engine
