#include "common/config/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

namespace mesh::config {
namespace {

/// Splits "1.5 GiB" into 1.5 and "GiB"; nothing when it does not begin with a plain decimal number.
std::optional<std::pair<double, std::string_view>> split_number(std::string_view text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  double number = 0;
  const auto [stop, failure] =
      std::from_chars(text.data(), text.data() + end, number, std::chars_format::fixed);
  if (failure != std::errc() || stop != text.data() + end) return std::nullopt;
  std::string_view unit = text.substr(end);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  return std::pair(number, unit);
}

template <std::size_t N>
std::optional<double> factor_of(const std::array<std::pair<std::string_view, double>, N>& units,
                                std::string_view unit) {
  for (const auto& [name, factor] : units) {
    if (name == unit) return factor;
  }
  return std::nullopt;
}

constexpr double kKi = 1024;
constexpr std::array<std::pair<std::string_view, double>, 10> kSizes = {{
    {"", 1},
    {"B", 1},
    {"kB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
    {"KiB", kKi},
    {"MiB", kKi* kKi},
    {"GiB", kKi* kKi* kKi},
    {"TiB", kKi* kKi* kKi* kKi},
}};
constexpr std::array<std::pair<std::string_view, double>, 4> kDurations = {{
    {"ms", 1e-3},
    {"s", 1},
    {"m", 60},
    {"h", 3600},
}};
constexpr double kLargestSize = 9e18;
constexpr double kLongestSeconds = 9e9;

}  // namespace

StatusOr<std::uint64_t> parse_size(std::string_view text) {
  const auto parts = split_number(text);
  const auto factor = parts ? factor_of(kSizes, parts->second) : std::nullopt;
  if (!factor || parts->first * *factor > kLargestSize) {
    return error(StatusCode::kInvalidArgument, "expected a size such as 8GiB, 512MB or 4096, got '{:.60}'",
                 text);
  }
  return static_cast<std::uint64_t>(std::llround(parts->first * *factor));
}

std::string format_size(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

StatusOr<Duration> parse_duration(std::string_view text) {
  if (text == "0") return Duration{0};
  const auto parts = split_number(text);
  const auto factor = parts ? factor_of(kDurations, parts->second) : std::nullopt;
  if (!factor || parts->first * *factor > kLongestSeconds) {
    return error(StatusCode::kInvalidArgument,
                 "expected a duration such as 250ms, 2s, 1.5m or 2h, got '{:.60}'", text);
  }
  return Duration(std::llround(parts->first * *factor * 1e9));
}

std::string format_duration(Duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  if (duration.count() % 1'000'000'000 == 0) return fmt::format("{}s", duration.count() / 1'000'000'000);
  return seconds < 1 ? fmt::format("{}ms", seconds * 1e3) : fmt::format("{}s", seconds);
}

}  // namespace mesh::config
