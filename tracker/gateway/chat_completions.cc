#include <chrono>

#include "common/json/error_fields.h"
#include "common/net/error_response.h"
#include "tracker/gateway/endpoints.h"
#include "tracker/gateway/request_fields.h"

// POST /v1/chat/completions
namespace mesh::gateway {
namespace {

constexpr std::size_t kMostMessages = 4096;
constexpr std::size_t kMaxBody = std::size_t{16} << 20;
constexpr json::Limits kLimits{.max_bytes = kMaxBody, .max_depth = 32, .max_values = 1 << 18};

std::int64_t unix_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

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

StatusOr<std::optional<std::uint32_t>> asked_tokens(const json::View& body) {
  for (const std::string_view field : {"max_completion_tokens", "max_tokens"}) {
    MESH_ASSIGN_OR_RETURN(const auto value, body.get_optional<std::uint32_t>(field));
    if (!value) continue;
    if (*value == 0) {
      return json::with_param(error(StatusCode::kInvalidArgument, "{}: must be at least 1", field), field);
    }
    return value;
  }
  return std::optional<std::uint32_t>{};
}

StatusOr<Job> read_job(Backend& backend, const net::Request& request, const EndpointOptions& options) {
  MESH_ASSIGN_OR_RETURN(const json::Value value, json::parse(request.body, kLimits));
  const json::View body(value);
  MESH_ASSIGN_OR_RETURN(CommonFields fields, read_common(body));
  MESH_ASSIGN_OR_RETURN(const Model* const model, find_model(backend, fields.model));
  MESH_RETURN_IF_ERROR(check_fields(body));
  MESH_RETURN_IF_ERROR(apply_defaults(body, model->defaults, fields));
  MESH_ASSIGN_OR_RETURN(const std::optional<std::uint32_t> asked, asked_tokens(body));
  MESH_ASSIGN_OR_RETURN(json::Array messages, read_messages(body));
  if (model->chat_template == nullptr) {
    return json::with_param(
        error(StatusCode::kInvalidArgument, "{} has no chat template: it completes text, use /v1/completions",
              model->name),
        "model");
  }
  ChatInput input;
  input.messages = std::move(messages);
  auto prompt = model->chat_template->render(input);
  if (!prompt.ok()) {
    const bool theirs = prompt.status().code() == StatusCode::kInvalidArgument;
    return theirs ? json::with_param(prompt.status(), "messages") : prompt.status();
  }
  Job job;
  MESH_ASSIGN_OR_RETURN(job.ask.prompt, model->tokenizer->encode(*prompt, AddSpecial::kNo));
  if (job.ask.prompt.empty()) {
    return json::with_param(error(StatusCode::kInvalidArgument, "messages: no tokens in them"), "messages");
  }
  MESH_ASSIGN_OR_RETURN(job.ask.max_tokens,
                        answer_tokens(*model, job.ask.prompt.size(), asked, options.chat_tokens, "messages"));
  job.ask.identity = model->identity;
  job.ask.eos_ids = model->defaults.eos_ids;
  job.ask.sampling = fields.sampling;
  job.ask.request_id = request.request_id;
  job.tokenizer = model->tokenizer;
  job.stops = std::move(fields.stops);
  job.stream = fields.stream;
  job.include_usage = fields.include_usage;
  job.shape = std::make_shared<ChatShape>(model->name, unix_now());
  return job;
}

}  // namespace

net::Route chat_completions_route(Backend& backend, EndpointOptions options) {
  const auto handle = [&backend, options](net::Request& request) {
    auto job = read_job(backend, request, options);
    if (!job.ok()) return net::error_response(job.status());
    return respond(backend, *std::move(job), request, options.respond);
  };
  return {"POST", "/v1/chat/completions", net::Access::kApiKey, handle, kMaxBody, true};
}

}  // namespace mesh::gateway
