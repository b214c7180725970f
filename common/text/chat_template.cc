#include "common/text/chat_template.h"

#include <array>
#include <chrono>
#include <utility>

#include "common/json/json.h"
#include "common/json/view.h"
#include "common/text/abi_call.h"

namespace mesh {
namespace {

using text::Buffer;
using text::bytes;
using text::to_status;

constexpr json::Limits kFileLimits{.max_bytes = 16u << 20};

/// The tokens that transformers hands to templates by name.
constexpr std::array kTokens = {"bos_token", "eos_token", "unk_token", "sep_token",
                                "pad_token", "cls_token", "mask_token"};
/// Where a model names tokens of its own; a list has no names.
constexpr std::array kTokensByName = {"extra_special_tokens", "model_specific_special_tokens"};

/// The template of tokenizer_config.json: a string, or the one called `name` of a list.
StatusOr<std::string> configured(const json::View& config, std::string_view name) {
  MESH_ASSIGN_OR_RETURN(const auto entry, config.find("chat_template"));
  if (!entry) return error(StatusCode::kNotFound, "the model has no chat template");
  if (!entry->value().is_array()) return entry->as<std::string>();
  const std::string_view wanted = name.empty() ? "default" : name;
  MESH_ASSIGN_OR_RETURN(const auto choices, entry->elements());
  for (const json::View& choice : choices) {
    MESH_ASSIGN_OR_RETURN(const std::string choice_name, choice.get<std::string>("name"));
    if (choice_name == wanted) return choice.get<std::string>("template");
  }
  return error(StatusCode::kNotFound, "the model has no chat template named \"{}\"", wanted);
}

Status take_token(const json::View& config, std::string_view name, json::Object& tokens) {
  MESH_ASSIGN_OR_RETURN(const auto token, config.find(name));
  if (!token) return absl::OkStatus();
  if (token->value().is_object()) {
    MESH_ASSIGN_OR_RETURN(tokens[name], token->get<std::string>("content"));
  } else {
    MESH_ASSIGN_OR_RETURN(tokens[name], token->as<std::string>());
  }
  return absl::OkStatus();
}

StatusOr<json::Object> named_tokens(const json::View& config) {
  json::Object tokens;
  for (const char* name : kTokens) MESH_RETURN_IF_ERROR(take_token(config, name, tokens));
  for (const char* group : kTokensByName) {
    MESH_ASSIGN_OR_RETURN(const auto more, config.find(group));
    if (!more || !more->value().is_object()) continue;
    for (const auto& [name, token] : more->value().as_object()) {
      MESH_RETURN_IF_ERROR(take_token(*more, std::string_view(name.data(), name.size()), tokens));
    }
  }
  return tokens;
}

}  // namespace

StatusOr<std::shared_ptr<const ChatTemplate>> ChatTemplate::load(std::string_view jinja_file,
                                                                 std::string_view tokenizer_config_json,
                                                                 std::string_view name) {
  json::Value config = json::Object();
  if (!tokenizer_config_json.empty()) {
    auto parsed = json::parse(tokenizer_config_json, kFileLimits);
    if (!parsed.ok()) return with_context(parsed.status(), "tokenizer_config.json");
    config = *std::move(parsed);
  }
  const json::View view(config);
  std::string source(jinja_file);
  if (source.empty()) {
    MESH_ASSIGN_OR_RETURN(source, configured(view, name));
  }
  MESH_ASSIGN_OR_RETURN(json::Object tokens, named_tokens(view));
  MeshTemplate* handle = nullptr;
  Buffer message;
  MESH_RETURN_IF_ERROR(
      to_status(mesh_text_template_new(bytes(source), source.size(), &handle, message.raw()), message));
  return std::shared_ptr<const ChatTemplate>(new ChatTemplate(handle, std::move(source), std::move(tokens)));
}

ChatTemplate::~ChatTemplate() {
  mesh_text_template_free(handle_);
}

StatusOr<std::string> ChatTemplate::render(const ChatInput& input, const ChatLimits& limits) const {
  json::Object variables = tokens_;
  variables["messages"] = input.messages;
  variables["tools"] = input.tools;
  variables["documents"] = input.documents;
  variables["add_generation_prompt"] = input.add_generation_prompt;
  for (const auto& [key, value] : input.variables) variables[key] = value;
  const std::int64_t now = input.now_unix_seconds.value_or(
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  const std::string text = json::serialize(variables);
  Buffer out;
  Buffer message;
  const std::int32_t code = mesh_text_template_render(handle_, bytes(text), text.size(), now, limits.steps,
                                                      limits.output_bytes, out.raw(), message.raw());
  MESH_RETURN_IF_ERROR(to_status(code, message));
  return out.str();
}

}  // namespace mesh
