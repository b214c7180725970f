#include "common/config/toml.h"

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include <algorithm>

namespace mesh::config {
namespace {

std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  return std::nullopt;
}

Status at_line(std::size_t line, std::string_view what) {
  return error(StatusCode::kInvalidArgument, "line {}: {}", line, what);
}

StatusOr<TomlEntry> read_entry(std::string_view key, const toml::node& node, std::size_t line) {
  TomlEntry entry{std::string(key), {}, node.is_array(), line};
  if (const auto text = scalar_text(node)) {
    entry.values.push_back(*text);
    return entry;
  }
  const toml::array* array = node.as_array();
  if (array == nullptr) {
    return at_line(line,
                   fmt::format("'{:.80}' should be text, a number, true, false or a list of these", key));
  }
  for (const toml::node& element : *array) {
    const auto text = scalar_text(element);
    if (!text) return at_line(line, fmt::format("'{:.80}': the list should hold text or numbers", key));
    entry.values.push_back(*text);
  }
  return entry;
}

}  // namespace

StatusOr<std::vector<TomlEntry>> parse_toml(std::string_view text) {
  if (text.size() > kMaxTomlBytes) {
    return error(StatusCode::kInvalidArgument, "settings file of {} bytes is longer than {}", text.size(),
                 kMaxTomlBytes);
  }
  const toml::parse_result result = toml::parse(text);
  if (!result) {
    const toml::parse_error& failure = result.error();
    return at_line(failure.source().begin.line, failure.description());
  }
  std::vector<TomlEntry> entries;
  for (const auto& [key, node] : result.table()) {
    MESH_ASSIGN_OR_RETURN(TomlEntry entry, read_entry(key.str(), node, key.source().begin.line));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const TomlEntry& a, const TomlEntry& b) { return a.line < b.line; });
  return entries;
}

}  // namespace mesh::config
