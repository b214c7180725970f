#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/json/json.h"
#include "tracker/gateway/backend.h"

namespace mesh::gateway {

struct Usage {
  std::uint64_t prompt_tokens = 0;
  std::uint64_t completion_tokens = 0;
};

/// "stop" or "length".
std::string_view finish_reason(EndReason reason);

/// JSON of one endpoint's answers, whole and in chunks (OpenAI API). One object per answer: its id and time
/// are the same in all that it makes.
class Shape {
 public:
  virtual ~Shape() = default;
  virtual json::Value whole(std::string_view text, EndReason reason, const Usage& usage) const = 0;
  /// The chunk before any text, if the endpoint has one (chat: the role).
  virtual std::optional<json::Value> first_chunk(bool with_usage) const = 0;
  virtual json::Value text_chunk(std::string_view text, bool with_usage) const = 0;
  virtual json::Value last_chunk(EndReason reason, bool with_usage) const = 0;
  /// choices: [] and the figures, behind the last chunk.
  virtual json::Value usage_chunk(const Usage& usage) const = 0;
};

class ChatShape final : public Shape {
 public:
  ChatShape(std::string model, std::int64_t created_unix);
  json::Value whole(std::string_view text, EndReason reason, const Usage& usage) const override;
  std::optional<json::Value> first_chunk(bool with_usage) const override;
  json::Value text_chunk(std::string_view text, bool with_usage) const override;
  json::Value last_chunk(EndReason reason, bool with_usage) const override;
  json::Value usage_chunk(const Usage& usage) const override;

 private:
  json::Object envelope(std::string_view object, bool null_usage) const;
  json::Value chunk(json::Object delta, json::Value reason, bool with_usage) const;

  std::string id_;
  std::string model_;
  std::int64_t created_;
};

class CompletionShape final : public Shape {
 public:
  CompletionShape(std::string model, std::int64_t created_unix);
  json::Value whole(std::string_view text, EndReason reason, const Usage& usage) const override;
  std::optional<json::Value> first_chunk(bool with_usage) const override;
  json::Value text_chunk(std::string_view text, bool with_usage) const override;
  json::Value last_chunk(EndReason reason, bool with_usage) const override;
  json::Value usage_chunk(const Usage& usage) const override;

 private:
  json::Object envelope(bool null_usage) const;
  json::Value choice(std::string_view text, json::Value reason) const;

  std::string id_;
  std::string model_;
  std::int64_t created_;
};

}  // namespace mesh::gateway
