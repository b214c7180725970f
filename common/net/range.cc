#include "common/net/range.h"

#include <algorithm>
#include <charconv>

namespace mesh::net {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// Digits alone; a number too large for 64 bits is the largest there is, which no file reaches.
std::optional<std::uint64_t> parse_digits(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  std::uint64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failure == std::errc() ? number : ~std::uint64_t{0};
}

bool take_unit(std::string_view& text, char separator) {
  constexpr std::string_view kBytes = "bytes";
  if (!text.starts_with(kBytes) || text.size() == kBytes.size() || text[kBytes.size()] != separator)
    return false;
  text.remove_prefix(kBytes.size() + 1);
  return true;
}

}  // namespace

StatusOr<std::optional<ByteRange>> parse_range(std::string_view header, std::uint64_t size) {
  const std::optional<ByteRange> whole;
  std::string_view spec = trimmed(header);
  if (!take_unit(spec, '=')) return whole;
  spec = trimmed(spec);
  const std::size_t dash = spec.find('-');
  if (dash == std::string_view::npos || spec.find(',') != std::string_view::npos) return whole;
  const std::string_view first_text = spec.substr(0, dash);
  const std::string_view last_text = spec.substr(dash + 1);
  const auto first = parse_digits(first_text);
  const auto last = parse_digits(last_text);
  const Status unsatisfiable = error(StatusCode::kOutOfRange, "range is outside the file of {} bytes", size);
  if (first_text.empty() && last) {
    if (*last == 0 || size == 0) return unsatisfiable;
    return std::optional(ByteRange{size - std::min(*last, size), size});
  }
  if (!first || (!last && !last_text.empty())) return whole;
  if (last && *last < *first) return whole;
  if (*first >= size) return unsatisfiable;
  return std::optional(ByteRange{*first, last ? std::min(*last, size - 1) + 1 : size});
}

std::string range_header(const ByteRange& range) {
  return fmt::format("bytes={}-{}", range.begin, range.end - 1);
}

std::string content_range_header(const ByteRange& range, std::uint64_t size) {
  return fmt::format("bytes {}-{}/{}", range.begin, range.end - 1, size);
}

std::optional<ContentRange> parse_content_range(std::string_view header) {
  std::string_view text = trimmed(header);
  if (!take_unit(text, ' ')) return std::nullopt;
  const std::size_t dash = text.find('-');
  const std::size_t slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || dash > slash) return std::nullopt;
  const auto first = parse_digits(text.substr(0, dash));
  const auto last = parse_digits(text.substr(dash + 1, slash - dash - 1));
  if (!first || !last || *last < *first || *last == ~std::uint64_t{0}) return std::nullopt;
  ContentRange result{{*first, *last + 1}, std::nullopt};
  if (text.substr(slash + 1) == "*") return result;
  result.size = parse_digits(text.substr(slash + 1));
  if (!result.size || *result.size < result.range.end) return std::nullopt;
  return result;
}

}  // namespace mesh::net
