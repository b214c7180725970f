#pragma once

#include <string>
#include <string_view>

namespace mesh {

/// A stranger's text as messages show it: at most `limit` bytes, control characters as '?'.
inline std::string printable(std::string_view text, std::size_t limit = 200) {
  std::string result(text.substr(0, limit));
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (text.size() > limit) result += "…";
  return result;
}

}  // namespace mesh
