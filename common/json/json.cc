#include "common/json/json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/serialize.hpp>

#include <charconv>
#include <utility>
#include <vector>

namespace mesh::json {
namespace {

using ErrorCode = boost::json::error_code;

/// Builds the document from the parser's events, which come depth first.
class Builder {
 public:
  constexpr static std::size_t max_object_size = std::size_t(-1);
  constexpr static std::size_t max_array_size = std::size_t(-1);
  constexpr static std::size_t max_key_size = std::size_t(-1);
  constexpr static std::size_t max_string_size = std::size_t(-1);

  explicit Builder(std::size_t max_values) : values_left_(max_values) {}

  /// Why the parser was stopped; "" when it was not.
  const std::string& refusal() const { return refusal_; }
  Value take() { return std::move(document_); }

  bool on_document_begin(ErrorCode&) { return true; }
  bool on_document_end(ErrorCode&) { return true; }
  bool on_object_begin(ErrorCode& failure) { return open(Object(), failure); }
  bool on_object_end(std::size_t, ErrorCode& failure) { return close(failure); }
  bool on_array_begin(ErrorCode& failure) { return open(Array(), failure); }
  bool on_array_end(std::size_t, ErrorCode& failure) { return close(failure); }
  bool on_key_part(boost::json::string_view part, std::size_t, ErrorCode&) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool on_key(boost::json::string_view part, std::size_t, ErrorCode&) {
    text_.append(part.data(), part.size());
    open_.back().key = std::exchange(text_, {});
    return true;
  }
  bool on_string_part(boost::json::string_view part, std::size_t, ErrorCode&) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool on_string(boost::json::string_view part, std::size_t, ErrorCode& failure) {
    text_.append(part.data(), part.size());
    return add(boost::json::string(std::exchange(text_, {})), failure);
  }
  bool on_number_part(boost::json::string_view, ErrorCode&) { return true; }
  bool on_int64(std::int64_t number, boost::json::string_view, ErrorCode& failure) {
    return add(number, failure);
  }
  bool on_uint64(std::uint64_t number, boost::json::string_view, ErrorCode& failure) {
    return add(number, failure);
  }
  bool on_double(double, boost::json::string_view text, ErrorCode& failure) {
    // Read anew: the parser's own number may be off in its last bits.
    double number = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (problem != std::errc() || end != text.data() + text.size()) {
      return refuse("a number is out of range", failure);
    }
    return add(number, failure);
  }
  bool on_bool(bool value, ErrorCode& failure) { return add(value, failure); }
  bool on_null(ErrorCode& failure) { return add(nullptr, failure); }
  bool on_comment_part(boost::json::string_view, ErrorCode&) { return true; }
  bool on_comment(boost::json::string_view, ErrorCode&) { return true; }

 private:
  struct Open {
    Value container;
    std::string key;  ///< of the value that comes next, in an object
  };

  bool refuse(std::string why, ErrorCode& failure) {
    refusal_ = std::move(why);
    failure = boost::json::error::syntax;
    return false;
  }
  bool count(ErrorCode& failure) {
    if (values_left_ == 0) return refuse("too many values", failure);
    --values_left_;
    return true;
  }
  bool open(Value container, ErrorCode& failure) {
    if (!count(failure)) return false;
    open_.push_back({std::move(container), {}});
    return true;
  }
  bool close(ErrorCode& failure) {
    Value done = std::move(open_.back().container);
    open_.pop_back();
    return place(std::move(done), failure);
  }
  bool add(Value value, ErrorCode& failure) { return count(failure) && place(std::move(value), failure); }
  bool place(Value value, ErrorCode& failure) {
    if (open_.empty()) {
      document_ = std::move(value);
      return true;
    }
    Open& top = open_.back();
    if (top.container.is_array()) {
      top.container.get_array().push_back(std::move(value));
      return true;
    }
    if (!top.container.get_object().emplace(top.key, std::move(value)).second) {
      return refuse(fmt::format("duplicate key \"{:.80}\"", top.key), failure);
    }
    return true;
  }

  std::size_t values_left_;
  std::vector<Open> open_;
  std::string text_;
  std::string refusal_;
  Value document_;
};

}  // namespace

StatusOr<Value> parse(std::string_view text, const Limits& limits) {
  if (text.size() > limits.max_bytes) {
    return error(StatusCode::kInvalidArgument, "JSON of {} bytes is longer than the {} allowed", text.size(),
                 limits.max_bytes);
  }
  boost::json::parse_options options;
  options.max_depth = limits.max_depth;
  boost::json::basic_parser<Builder> parser(options, limits.max_values);
  ErrorCode failure;
  std::size_t used = parser.write_some(false, text.data(), text.size(), failure);
  if (!failure && used < text.size()) failure = boost::json::error::extra_data;
  if (failure) {
    const std::string& refusal = parser.handler().refusal();
    std::string why = refusal.empty() ? failure.message() : refusal;
    if (failure == boost::json::error::too_deep)
      why = fmt::format("nested deeper than {} levels", limits.max_depth);
    return error(StatusCode::kInvalidArgument, "invalid JSON at byte {}: {}", used, why);
  }
  return parser.handler().take();
}

std::string serialize(const Value& value) {
  return boost::json::serialize(value);
}

std::string as_utf8(std::string_view bytes) {
  const Value probe{boost::json::string(bytes.data(), bytes.size())};
  if (parse(json::serialize(probe), {.max_bytes = ~std::size_t{0}}).ok()) return std::string(bytes);
  std::string clean;
  for (const char c : bytes) clean += static_cast<unsigned char>(c) < 0x80 ? c : '?';
  return clean;
}

}  // namespace mesh::json
