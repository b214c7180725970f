#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace mesh::config {

/// One key of a settings file. Numbers and booleans are kept as the text that a flag would have; arrays as
/// their elements.
struct TomlEntry {
  std::string key;
  std::vector<std::string> values;
  bool is_array = false;
  std::size_t line = 0;
};

inline constexpr std::size_t kMaxTomlBytes = std::size_t{1} << 20;

/// The keys of a flat TOML 1.0 document in the order of their lines. Of TOML's values: text on one line,
/// decimal numbers, true, false, and lists of these; tables, dotted keys, dates and nested lists are refused.
/// Errors name the line.
StatusOr<std::vector<TomlEntry>> parse_toml(std::string_view text);

}  // namespace mesh::config
