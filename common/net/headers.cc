#include "common/net/headers.h"

#include <algorithm>

namespace mesh::net {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string without_controls(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) clean += c;
  }
  return clean;
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

void Headers::add(std::string_view name, std::string_view value) {
  fields_.emplace_back(without_controls(name), without_controls(value));
}

std::string_view Headers::get(std::string_view name) const {
  for (const auto& [field, value] : fields_) {
    if (equal_ignoring_case(field, name)) return value;
  }
  return {};
}

std::size_t Headers::count(std::string_view name) const {
  return static_cast<std::size_t>(std::count_if(fields_.begin(), fields_.end(), [&](const auto& field) {
    return equal_ignoring_case(field.first, name);
  }));
}

}  // namespace mesh::net
