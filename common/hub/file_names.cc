#include "common/hub/file_names.h"

#include <algorithm>

namespace mesh::hub {
namespace {

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '-';
}

bool is_part(std::string_view part, std::size_t limit) {
  return !part.empty() && part.size() <= limit && part != "." && part != ".." &&
         std::all_of(part.begin(), part.end(), is_word);
}

}  // namespace

bool is_file_name(std::string_view name) {
  return is_part(name, 255) && name.front() != '.';
}

bool is_model_id(std::string_view id) {
  const auto slash = id.find('/');
  return slash != std::string_view::npos && is_part(id.substr(0, slash), 96) &&
         is_part(id.substr(slash + 1), 96);
}

bool is_revision(std::string_view revision) {
  if (revision.empty() || revision.size() > 255) return false;
  while (true) {
    const auto slash = revision.find('/');
    if (!is_part(revision.substr(0, slash), 255)) return false;
    if (slash == std::string_view::npos) return true;
    revision.remove_prefix(slash + 1);
  }
}

}  // namespace mesh::hub
