// Settings files, and the sizes and durations in them.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/config/toml.h"
#include "common/config/units.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mesh::config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto bytes = parse_size(text); bytes.ok() && *parse_size(format_size(*bytes)) != *bytes)
    std::abort();
  (void)parse_duration(text);
  const auto entries = parse_toml(text);
  if (!entries.ok()) return 0;
  std::size_t line = 0;
  for (const TomlEntry& entry : *entries) {
    if (entry.line < line || (!entry.is_array && entry.values.size() != 1)) std::abort();
    line = entry.line;
  }
  return 0;
}
