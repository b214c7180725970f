#include "tracker/gateway/shapes.h"

#include "common/base/ids.h"
#include "common/identity/random.h"

namespace mesh::gateway {
namespace {

json::Value text(std::string_view value) {
  return json::Value(boost::json::string(value.data(), value.size()));
}

json::Object usage_object(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

std::string fresh_id(std::string_view prefix) {
  return std::string(prefix) + to_hex(random_bytes(12));
}

}  // namespace

std::string_view finish_reason(EndReason reason) {
  return reason == EndReason::kStop ? "stop" : "length";
}

ChatShape::ChatShape(std::string model, std::int64_t created_unix)
    : id_(fresh_id("chatcmpl-")), model_(std::move(model)), created_(created_unix) {}

json::Object ChatShape::envelope(std::string_view object, bool null_usage) const {
  json::Object out{
      {"id", text(id_)}, {"object", text(object)}, {"created", created_}, {"model", text(model_)}};
  if (null_usage) out["usage"] = nullptr;
  return out;
}

json::Value ChatShape::whole(std::string_view content, EndReason reason, const Usage& usage) const {
  json::Object message{{"role", "assistant"}, {"content", text(content)}, {"refusal", nullptr}};
  json::Object choice{{"index", 0},
                      {"message", std::move(message)},
                      {"logprobs", nullptr},
                      {"finish_reason", text(finish_reason(reason))}};
  json::Object out = envelope("chat.completion", false);
  out["choices"] = json::Array{std::move(choice)};
  out["usage"] = usage_object(usage);
  return out;
}

json::Value ChatShape::chunk(json::Object delta, json::Value reason, bool with_usage) const {
  json::Object choice{
      {"index", 0}, {"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", std::move(reason)}};
  json::Object out = envelope("chat.completion.chunk", with_usage);
  out["choices"] = json::Array{std::move(choice)};
  return out;
}

std::optional<json::Value> ChatShape::first_chunk(bool with_usage) const {
  return chunk({{"role", "assistant"}, {"content", ""}, {"refusal", nullptr}}, nullptr, with_usage);
}

json::Value ChatShape::text_chunk(std::string_view content, bool with_usage) const {
  return chunk({{"content", text(content)}}, nullptr, with_usage);
}

json::Value ChatShape::last_chunk(EndReason reason, bool with_usage) const {
  return chunk({}, text(finish_reason(reason)), with_usage);
}

json::Value ChatShape::usage_chunk(const Usage& usage) const {
  json::Object out = envelope("chat.completion.chunk", false);
  out["choices"] = json::Array{};
  out["usage"] = usage_object(usage);
  return out;
}

CompletionShape::CompletionShape(std::string model, std::int64_t created_unix)
    : id_(fresh_id("cmpl-")), model_(std::move(model)), created_(created_unix) {}

json::Object CompletionShape::envelope(bool null_usage) const {
  json::Object out{
      {"id", text(id_)}, {"object", "text_completion"}, {"created", created_}, {"model", text(model_)}};
  if (null_usage) out["usage"] = nullptr;
  return out;
}

json::Value CompletionShape::choice(std::string_view content, json::Value reason) const {
  return json::Object{
      {"text", text(content)}, {"index", 0}, {"logprobs", nullptr}, {"finish_reason", std::move(reason)}};
}

json::Value CompletionShape::whole(std::string_view content, EndReason reason, const Usage& usage) const {
  json::Object out = envelope(false);
  out["choices"] = json::Array{choice(content, text(finish_reason(reason)))};
  out["usage"] = usage_object(usage);
  return out;
}

std::optional<json::Value> CompletionShape::first_chunk(bool) const {
  return std::nullopt;
}

json::Value CompletionShape::text_chunk(std::string_view content, bool with_usage) const {
  json::Object out = envelope(with_usage);
  out["choices"] = json::Array{choice(content, nullptr)};
  return out;
}

json::Value CompletionShape::last_chunk(EndReason reason, bool with_usage) const {
  json::Object out = envelope(with_usage);
  out["choices"] = json::Array{choice("", text(finish_reason(reason)))};
  return out;
}

json::Value CompletionShape::usage_chunk(const Usage& usage) const {
  json::Object out = envelope(false);
  out["choices"] = json::Array{};
  out["usage"] = usage_object(usage);
  return out;
}

}  // namespace mesh::gateway
