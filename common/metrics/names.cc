#include <algorithm>
#include <array>

#include "common/metrics/metrics.h"

namespace mesh::metrics {
namespace {

bool is_lower_name(std::string_view text) {
  return !text.empty() &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos &&
         text.front() >= 'a' && text.back() != '_' && text.find("__") == std::string_view::npos;
}

constexpr std::array<std::string_view, 16> kNotBaseUnits = {
    "_ms", "_milliseconds", "_us", "_microseconds", "_ns",  "_nanoseconds", "_minutes", "_hours",
    "_kb", "_mb",           "_gb", "_kib",          "_mib", "_gib",         "_percent", "_celsius",
};
constexpr std::array<std::string_view, 12> kUnboundedLabels = {
    "key", "api_key", "address", "ip", "host", "port", "prompt", "session", "request", "user", "url", "text"};
/// What the exposition format adds to a histogram's name or uses itself.
constexpr std::array<std::string_view, 4> kReservedEndings = {"_count", "_sum", "_bucket", "_info"};

}  // namespace

Status check_name(Kind kind, std::string_view name, const Labels& labels) {
  const auto bad = [&](std::string_view why) {
    return error(StatusCode::kInvalidArgument, "metric '{}': {}", name, why);
  };
  if (!is_lower_name(name) || !name.starts_with("meshnet_"))
    return bad("should be meshnet_ and lower_case words");
  const bool is_total = name.ends_with("_total");
  if ((kind == Kind::kCounter) != is_total) return bad("counters, and only they, end in _total");
  const std::string_view stem =
      is_total ? name.substr(0, name.size() - std::string_view("_total").size()) : name;
  for (const std::string_view unit : kNotBaseUnits) {
    if (stem.ends_with(unit)) return bad("should count base units: seconds, bytes, ratio");
  }
  for (const std::string_view ending : kReservedEndings) {
    if (stem.ends_with(ending)) return bad("has an ending that histograms use");
  }
  for (const auto& [label, value] : labels) {
    if (!is_lower_name(label) || label == "le" || label == "quantile")
      return bad("a label should be a lower_case word");
    if (std::find(kUnboundedLabels.begin(), kUnboundedLabels.end(), label) != kUnboundedLabels.end()) {
      return bad("a label by key, address, session or text has too many values");
    }
  }
  return absl::OkStatus();
}

}  // namespace mesh::metrics
