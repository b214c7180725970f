#include "common/json/error_fields.h"
#include "tracker/gateway/answering_route.h"
#include "tracker/gateway/endpoints.h"
#include "tracker/gateway/request_fields.h"

// POST /v1/completions
namespace mesh::gateway {
namespace {

StatusOr<std::vector<TokenId>> read_ids(const Model& model, const json::View& prompt) {
  MESH_ASSIGN_OR_RETURN(const std::vector<json::View> items, prompt.elements());
  std::vector<TokenId> ids;
  ids.reserve(items.size());
  for (const json::View& item : items) {
    MESH_ASSIGN_OR_RETURN(const TokenId id, item.as<TokenId>());
    if (id < 0 || static_cast<std::uint32_t>(id) >= model.vocab) {
      return json::with_param(
          item.error(fmt::format("id {} lies outside the vocabulary of {}", id, model.vocab)), "prompt");
    }
    ids.push_back(id);
  }
  return ids;
}

/// A text, a list of ids, or a list of one of these.
StatusOr<std::vector<TokenId>> read_prompt(const Model& model, const json::View& body) {
  MESH_ASSIGN_OR_RETURN(json::View prompt, body.field("prompt"));
  if (prompt.value().is_array()) {
    MESH_ASSIGN_OR_RETURN(const std::vector<json::View> items, prompt.elements());
    if (items.empty()) return prompt.error("is empty");
    const bool nested = items.front().value().is_string() || items.front().value().is_array();
    if (nested && items.size() > 1)
      return prompt.error("several prompts in one request are not supported yet");
    if (nested) prompt = items.front();
  }
  std::vector<TokenId> ids;
  if (prompt.value().is_string()) {
    MESH_ASSIGN_OR_RETURN(const std::string text, prompt.as<std::string>());
    MESH_ASSIGN_OR_RETURN(ids, model.tokenizer->encode(text, AddSpecial::kYes));
  } else if (prompt.value().is_array()) {
    MESH_ASSIGN_OR_RETURN(ids, read_ids(model, prompt));
  } else {
    return prompt.mismatch("a string or an array of token ids");
  }
  if (ids.empty()) return json::with_param(error(StatusCode::kInvalidArgument, "prompt: is empty"), "prompt");
  return ids;
}

Status check_fields(const json::View& body) {
  MESH_RETURN_IF_ERROR(
      only_known(body, {"model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop",
                        "stream", "stream_options", "n", "best_of", "echo", "logprobs", "suffix", "user",
                        "presence_penalty", "frequency_penalty", "logit_bias"}));
  for (const std::string_view field : {"echo", "presence_penalty", "frequency_penalty", "logit_bias"}) {
    MESH_RETURN_IF_ERROR(refuse_unsupported(body, field));
  }
  MESH_RETURN_IF_ERROR(refuse_unsupported(body, "suffix", {""}));
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> logprobs, body.find("logprobs"));
  if (logprobs)
    return json::with_code(logprobs->error("this server does not support it yet: leave it out"),
                           "unsupported_parameter");
  for (const std::string_view field : {"n", "best_of"}) {
    MESH_ASSIGN_OR_RETURN(const std::int64_t count, body.get_or<std::int64_t>(field, 1));
    if (count != 1)
      return json::with_param(error(StatusCode::kInvalidArgument, "{}: only 1 is supported", field), field);
  }
  return absl::OkStatus();
}

std::shared_ptr<const Shape> shape(const std::string& model, std::int64_t unix_seconds) {
  return std::make_shared<CompletionShape>(model, unix_seconds);
}

}  // namespace

net::Route completions_route(Backend& backend, EndpointOptions options) {
  return answering_route(backend,
                         {.path = "/v1/completions",
                          .most_values = 1 << 21,
                          .check_fields = check_fields,
                          .length_fields = {"max_tokens"},
                          .fallback_tokens = options.completion_tokens,
                          .prompt_field = "prompt",
                          .read_prompt = read_prompt,
                          .shape = shape},
                         options.respond);
}

}  // namespace mesh::gateway
