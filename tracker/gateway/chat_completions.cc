#include "common/json/error_fields.h"
#include "tracker/gateway/answering_route.h"
#include "tracker/gateway/endpoints.h"
#include "tracker/gateway/request_fields.h"

// POST /v1/chat/completions
namespace mesh::gateway {
namespace {

constexpr std::size_t kMostMessages = 4096;
/// Text of a message's content: a string, or the text parts joined.
StatusOr<std::string> content_text(const json::View& message) {
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> content, message.find("content"));
  if (!content) return std::string();
  if (content->value().is_string()) return content->as<std::string>();
  if (!content->value().is_array()) return content->mismatch("a string or an array of parts");
  MESH_ASSIGN_OR_RETURN(const std::vector<json::View> parts, content->elements());
  std::string text;
  for (const json::View& part : parts) {
    MESH_ASSIGN_OR_RETURN(const json::View type, part.field("type"));
    MESH_ASSIGN_OR_RETURN(const std::string kind, type.as<std::string>());
    if (kind != "text")
      return type.error(fmt::format("parts of type '{}' are not supported, only 'text'", kind));
    MESH_ASSIGN_OR_RETURN(const std::string piece, part.get<std::string>("text"));
    text += piece;
  }
  return text;
}

StatusOr<json::Object> read_message(const json::View& message) {
  MESH_ASSIGN_OR_RETURN(const json::View role_view, message.field("role"));
  MESH_ASSIGN_OR_RETURN(std::string role, role_view.as<std::string>());
  if (role == "developer") role = "system";  // what templates know
  if (role != "system" && role != "user" && role != "assistant") {
    return role_view.error(
        fmt::format("role '{}' is not supported: use system, developer, user or assistant", role));
  }
  for (const std::string_view field : {"tool_calls", "function_call", "audio"}) {
    MESH_RETURN_IF_ERROR(refuse_unsupported(message, field));
  }
  MESH_ASSIGN_OR_RETURN(std::string text, content_text(message));
  if (role != "assistant") MESH_RETURN_IF_ERROR(message.field("content").status());
  json::Object out{{"role", boost::json::string(role)}, {"content", boost::json::string(text)}};
  MESH_ASSIGN_OR_RETURN(const auto name, message.get_optional<std::string>("name"));
  if (name) out["name"] = boost::json::string(*name);
  return out;
}

StatusOr<json::Array> read_messages(const json::View& body) {
  MESH_ASSIGN_OR_RETURN(const json::View view, body.field("messages"));
  MESH_ASSIGN_OR_RETURN(const std::vector<json::View> items, view.elements());
  if (items.empty()) return view.error("must hold at least one message");
  if (items.size() > kMostMessages)
    return view.error(fmt::format("holds more than {} messages", kMostMessages));
  json::Array messages;
  for (const json::View& item : items) {
    MESH_ASSIGN_OR_RETURN(json::Object message, read_message(item));
    messages.push_back(std::move(message));
  }
  return messages;
}

Status check_fields(const json::View& body) {
  MESH_RETURN_IF_ERROR(only_known(body, {"model",
                                         "messages",
                                         "max_tokens",
                                         "max_completion_tokens",
                                         "temperature",
                                         "top_p",
                                         "top_k",
                                         "seed",
                                         "stop",
                                         "stream",
                                         "stream_options",
                                         "n",
                                         "user",
                                         "presence_penalty",
                                         "frequency_penalty",
                                         "logit_bias",
                                         "logprobs",
                                         "top_logprobs",
                                         "tools",
                                         "tool_choice",
                                         "parallel_tool_calls",
                                         "response_format",
                                         "functions",
                                         "function_call",
                                         "audio",
                                         "modalities",
                                         "prediction",
                                         "reasoning_effort",
                                         "service_tier",
                                         "store",
                                         "metadata",
                                         "verbosity",
                                         "web_search_options",
                                         "prompt_cache_key",
                                         "safety_identifier"}));
  for (const std::string_view field :
       {"presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "tools",
        "functions", "audio", "prediction", "reasoning_effort", "store", "metadata", "verbosity",
        "web_search_options"}) {
    MESH_RETURN_IF_ERROR(refuse_unsupported(body, field));
  }
  MESH_RETURN_IF_ERROR(refuse_unsupported(body, "tool_choice", {"none", "auto"}));
  MESH_RETURN_IF_ERROR(refuse_unsupported(body, "function_call", {"none", "auto"}));
  MESH_RETURN_IF_ERROR(refuse_unsupported(body, "service_tier", {"auto", "default"}));
  MESH_ASSIGN_OR_RETURN(const std::int64_t n, body.get_or<std::int64_t>("n", 1));
  if (n != 1) return json::with_param(error(StatusCode::kInvalidArgument, "n: only 1 is supported"), "n");
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> format, body.find("response_format"));
  if (format) {
    MESH_ASSIGN_OR_RETURN(const std::string type, format->get<std::string>("type"));
    if (type != "text") return format->error(fmt::format("type '{}' is not supported, only 'text'", type));
  }
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> modalities, body.find("modalities"));
  if (modalities && modalities->value() != json::Value(json::Array{"text"})) {
    return modalities->error("only [\"text\"] is supported");
  }
  return absl::OkStatus();
}

StatusOr<std::vector<TokenId>> read_prompt(const Model& model, const json::View& body) {
  ChatInput input;
  MESH_ASSIGN_OR_RETURN(input.messages, read_messages(body));
  if (model.chat_template == nullptr) {
    return json::with_param(
        error(StatusCode::kInvalidArgument, "{} has no chat template: it completes text, use /v1/completions",
              model.name),
        "model");
  }
  const auto prompt = model.chat_template->render(input);
  if (!prompt.ok()) {
    const bool theirs = prompt.status().code() == StatusCode::kInvalidArgument;
    return theirs ? json::with_param(prompt.status(), "messages") : prompt.status();
  }
  MESH_ASSIGN_OR_RETURN(std::vector<TokenId> ids, model.tokenizer->encode(*prompt, AddSpecial::kNo));
  if (ids.empty()) {
    return json::with_param(error(StatusCode::kInvalidArgument, "messages: no tokens in them"), "messages");
  }
  return ids;
}

std::shared_ptr<const Shape> shape(const std::string& model, std::int64_t unix_seconds) {
  return std::make_shared<ChatShape>(model, unix_seconds);
}

}  // namespace

net::Route chat_completions_route(Backend& backend, EndpointOptions options) {
  return answering_route(backend,
                         {.path = "/v1/chat/completions",
                          .most_values = 1 << 18,
                          .check_fields = check_fields,
                          .length_fields = {"max_completion_tokens", "max_tokens"},
                          .fallback_tokens = options.chat_tokens,
                          .prompt_field = "messages",
                          .read_prompt = read_prompt,
                          .shape = shape},
                         options.respond);
}

}  // namespace mesh::gateway
