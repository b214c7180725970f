#include "common/config/toml.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "common/json/json.h"

namespace mesh::config {
namespace {

constexpr std::string_view kKeyCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr unsigned char kLead[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(kLead[more] | code >> (6 * more));
  for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3f));
}

/// The number as a flag would have it, without underscores and leading plus; nothing for what is no decimal
/// number.
std::optional<std::string> number_text(std::string_view token) {
  std::string text;
  for (std::size_t i = 0; i < token.size(); ++i) {
    const auto is_digit = [&](std::size_t at) {
      return at < token.size() && token[at] >= '0' && token[at] <= '9';
    };
    if (token[i] == '_') {
      if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return std::nullopt;
    } else if (i > 0 || token[i] != '+') {
      text += token[i];
    }
  }
  if (text.find_first_not_of("0123456789.eE+-") != std::string::npos) return std::nullopt;
  const std::string digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (digits.empty() || digits.front() < '0' || digits.front() > '9' || digits.back() == '.')
    return std::nullopt;
  if (digits.size() > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9') return std::nullopt;
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return text;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  StatusOr<std::vector<TomlEntry>> run() {
    std::vector<TomlEntry> entries;
    std::set<std::string> keys;
    while (skip_blank(true), !rest_.empty()) {
      TomlEntry entry;
      entry.line = line_;
      MESH_ASSIGN_OR_RETURN(entry.key, read_key());
      if (!keys.insert(entry.key).second) return bad(fmt::format("'{:.80}' is set twice", entry.key));
      skip_blank(false);
      if (!take('=')) return bad("expected = after the key (settings are flat: no dotted keys)");
      skip_blank(false);
      MESH_RETURN_IF_ERROR(read_value(entry));
      skip_blank(false);
      if (!rest_.empty() && rest_.front() != '\n') return bad("expected the end of the line");
      entries.push_back(std::move(entry));
    }
    return entries;
  }

 private:
  Status bad(std::string_view what) const {
    return error(StatusCode::kInvalidArgument, "line {}: {}", line_, what);
  }
  bool take(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  /// Spaces and comments; line ends too when `lines`.
  void skip_blank(bool lines) {
    while (!rest_.empty()) {
      const char c = rest_.front();
      if (c == '#') {
        rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
      } else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
        if (c == '\n') ++line_;
        rest_.remove_prefix(1);
      } else {
        return;
      }
    }
  }

  StatusOr<std::string> read_key() {
    if (rest_.front() == '[') return bad("tables are not supported: settings are flat");
    if (rest_.front() == '"' || rest_.front() == '\'') return read_text();
    const std::size_t end = std::min(rest_.find_first_not_of(kKeyCharacters), rest_.size());
    if (end == 0) return bad("expected a key");
    std::string key(rest_.substr(0, end));
    rest_.remove_prefix(end);
    return key;
  }

  Status read_value(TomlEntry& entry) {
    entry.is_array = take('[');
    if (!entry.is_array) return read_scalar(entry.values);
    while (true) {
      skip_blank(true);
      if (take(']')) return absl::OkStatus();
      MESH_RETURN_IF_ERROR(read_scalar(entry.values));
      skip_blank(true);
      if (!take(',') && (rest_.empty() || rest_.front() != ']')) return bad("expected , or ] in the list");
    }
  }

  Status read_scalar(std::vector<std::string>& values) {
    if (rest_.starts_with('"') || rest_.starts_with('\'')) {
      MESH_ASSIGN_OR_RETURN(std::string text, read_text());
      values.push_back(std::move(text));
      return absl::OkStatus();
    }
    const std::size_t end = std::min(rest_.find_first_of(" \t\r\n,]#"), rest_.size());
    const std::string_view token = rest_.substr(0, end);
    const auto number = token == "true" || token == "false" ? std::string(token) : number_text(token);
    if (!number)
      return bad(
          fmt::format("'{:.60}' should be text in quotes, a number, true or false", json::as_utf8(token)));
    values.push_back(*number);
    rest_.remove_prefix(end);
    return absl::OkStatus();
  }

  StatusOr<std::string> read_text() {
    const char quote = rest_.front();
    if (rest_.starts_with(std::string(3, quote))) return bad("text over several lines is not supported");
    rest_.remove_prefix(1);
    std::string text;
    while (!rest_.empty() && rest_.front() != '\n') {
      const char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == quote) return text;
      if (c == '\\' && quote == '"') {
        MESH_RETURN_IF_ERROR(read_escape(text));
      } else {
        text += c;
      }
    }
    return bad("the text has no closing quote");
  }

  Status read_escape(std::string& text) {
    constexpr std::string_view kNames = "btnfr\"\\";
    constexpr std::string_view kMeanings = "\b\t\n\f\r\"\\";
    const char name = rest_.empty() ? '\0' : rest_.front();
    if (const std::size_t at = kNames.find(name); at != std::string_view::npos) {
      text += kMeanings[at];
      rest_.remove_prefix(1);
      return absl::OkStatus();
    }
    const std::size_t digits = name == 'u' ? 4 : name == 'U' ? 8 : 0;
    std::uint32_t code = 0;
    const std::string_view hex = rest_.substr(std::min<std::size_t>(1, rest_.size()), digits);
    const auto [end, failure] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    const bool is_scalar = code != 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
    if (digits == 0 || hex.size() != digits || failure != std::errc() || end != hex.data() + digits ||
        !is_scalar) {
      return bad("bad escape in the text");
    }
    append_utf8(text, code);
    rest_.remove_prefix(1 + digits);
    return absl::OkStatus();
  }

  std::string_view rest_;
  std::size_t line_ = 1;
};

}  // namespace

StatusOr<std::vector<TomlEntry>> parse_toml(std::string_view text) {
  if (text.size() > kMaxTomlBytes) {
    return error(StatusCode::kInvalidArgument, "settings file of {} bytes is longer than {}", text.size(),
                 kMaxTomlBytes);
  }
  std::size_t line = 1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool is_line_end = c == '\n' || (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n');
    if ((c < 0x20 && c != '\t' && !is_line_end) || c == 0x7f) {
      return error(StatusCode::kInvalidArgument, "line {}: control characters are not allowed", line);
    }
    if (c == '\n') ++line;
  }
  if (json::as_utf8(text) != text)
    return error(StatusCode::kInvalidArgument, "the settings file is not UTF-8");
  return Parser(text).run();
}

}  // namespace mesh::config
