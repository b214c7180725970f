#pragma once

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/status.h"

struct MeshTemplate;

namespace mesh {

/// Values that a template sees. Null means None.
struct ChatInput {
  boost::json::value messages;   ///< array of objects with "role" and "content"
  boost::json::value tools;      ///< array of function schemas, or null
  boost::json::value documents;  ///< array, or null
  bool add_generation_prompt = true;
  boost::json::object variables;  ///< further ones ("enable_thinking"); win over the ones above
  std::optional<std::int64_t> now_unix_seconds;  ///< for strftime_now, UTC; the clock's when absent
};

struct ChatLimits {
  std::uint64_t steps = 5'000'000;       ///< of the template engine
  std::size_t output_bytes = 16u << 20;  ///< of the rendering, and of any string made on the way
};

/// A model's chat template; renders what transformers renders (its Jinja2 environment, its tojson, its tags
/// and globals). Immutable, and safe to use from any number of threads at once.
class ChatTemplate {
 public:
  /// `jinja_file`: contents of chat_template.jinja, preferred when not empty. `tokenizer_config_json`: its
  /// "chat_template" (a string, or a list of {"name", "template"} of which `name`, else "default", is taken),
  /// and bos_token, eos_token and the other special tokens that templates name. kNotFound: the model has no
  /// chat template. kInvalidArgument: it has one that cannot be parsed (with the line).
  static StatusOr<std::shared_ptr<const ChatTemplate>> load(std::string_view jinja_file,
                                                            std::string_view tokenizer_config_json,
                                                            std::string_view name = {});
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  /// The prompt's text; encode it with AddSpecial::kNo.
  /// kInvalidArgument: the template refused the messages (its raise_exception) or cannot handle them, with
  /// its message. kResourceExhausted: a limit of `limits` was reached.
  StatusOr<std::string> render(const ChatInput& input, const ChatLimits& limits = {}) const;

  /// The template's source, for those who look for what it supports (tools, thinking).
  const std::string& source() const { return source_; }

 private:
  ChatTemplate(MeshTemplate* handle, std::string source, boost::json::object tokens)
      : handle_(handle), source_(std::move(source)), tokens_(std::move(tokens)) {}
  MeshTemplate* handle_;
  std::string source_;
  boost::json::object tokens_;  ///< bos_token and the like
};

}  // namespace mesh
