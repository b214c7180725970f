#include "common/text/generation_defaults.h"

#include <algorithm>
#include <limits>
#include <string>

#include "common/json/json.h"
#include "common/json/view.h"

namespace mesh {
namespace {

constexpr json::Limits kFileLimits{.max_bytes = 16u << 20};

StatusOr<json::Value> read(std::string_view text, std::string_view name) {
  if (text.empty()) return json::Value(json::Object());
  auto parsed = json::parse(text, kFileLimits);
  if (!parsed.ok()) return with_context(parsed.status(), name);
  if (!parsed->is_object()) return error(StatusCode::kInvalidArgument, "{}: not a JSON object", name);
  return parsed;
}

StatusOr<TokenId> token_id(const json::View& view) {
  MESH_ASSIGN_OR_RETURN(const TokenId id, view.as<TokenId>());
  if (id < 0) return view.error("a token id is not negative");
  return id;
}

/// Takes `key` as a list of ids if the file has it: a number, or a list of numbers.
Status take_ids(const json::View& file, std::string_view key, std::vector<TokenId>& ids) {
  MESH_ASSIGN_OR_RETURN(const auto found, file.find(key));
  if (!found) return absl::OkStatus();
  std::vector<json::View> items{*found};
  if (found->value().is_array()) {
    MESH_ASSIGN_OR_RETURN(items, found->elements());
  }
  ids.clear();
  for (const json::View& item : items) {
    MESH_ASSIGN_OR_RETURN(const TokenId id, token_id(item));
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return absl::OkStatus();
}

Status take_id(const json::View& file, std::string_view key, std::optional<TokenId>& id) {
  std::vector<TokenId> ids;
  MESH_RETURN_IF_ERROR(take_ids(file, key, ids));
  if (!ids.empty()) id = ids.front();
  return absl::OkStatus();
}

template <class T>
Status take_number(const json::View& file, std::string_view key, T low, T high, std::optional<T>& value) {
  MESH_ASSIGN_OR_RETURN(const auto found, file.find(key));
  if (!found) return absl::OkStatus();
  MESH_ASSIGN_OR_RETURN(const T number, found->template as<T>());
  if (number < low || number > high) {
    return found->error(fmt::format("expected a number from {} to {}, got {}", low, high, number));
  }
  value = number;
  return absl::OkStatus();
}

Status take_tokens(const json::View& file, GenerationDefaults& out) {
  MESH_RETURN_IF_ERROR(take_ids(file, "eos_token_id", out.eos_ids));
  MESH_RETURN_IF_ERROR(take_id(file, "bos_token_id", out.bos_id));
  return take_id(file, "pad_token_id", out.pad_id);
}

Status take_sampling(const json::View& file, GenerationDefaults& out) {
  MESH_ASSIGN_OR_RETURN(out.do_sample, file.get_or<bool>("do_sample", false));
  if (!out.do_sample) return absl::OkStatus();
  constexpr double kMany = 1e6;
  MESH_RETURN_IF_ERROR(take_number(file, "temperature", 0.0, kMany, out.temperature));
  MESH_RETURN_IF_ERROR(take_number(file, "top_p", 0.0, 1.0, out.top_p));
  MESH_RETURN_IF_ERROR(take_number(file, "min_p", 0.0, 1.0, out.min_p));
  MESH_RETURN_IF_ERROR(take_number(file, "repetition_penalty", 0.0, kMany, out.repetition_penalty));
  return take_number<std::int64_t>(file, "top_k", 0, std::numeric_limits<std::int32_t>::max(), out.top_k);
}

}  // namespace

StatusOr<GenerationDefaults> GenerationDefaults::parse(std::string_view config_json,
                                                       std::string_view generation_config_json) {
  MESH_ASSIGN_OR_RETURN(const json::Value config, read(config_json, "config.json"));
  MESH_ASSIGN_OR_RETURN(const json::Value generation, read(generation_config_json, "generation_config.json"));
  GenerationDefaults out;
  const json::View view(config, "config.json");
  MESH_ASSIGN_OR_RETURN(const auto nested, view.find("text_config"));
  if (nested) MESH_RETURN_IF_ERROR(take_tokens(*nested, out));
  MESH_RETURN_IF_ERROR(take_tokens(view, out));
  const json::View overrides(generation, "generation_config.json");
  MESH_RETURN_IF_ERROR(take_tokens(overrides, out));
  MESH_RETURN_IF_ERROR(take_sampling(overrides, out));
  return out;
}

}  // namespace mesh
