#pragma once

#include <string_view>

namespace mesh {

/// Makes libsodium ready. Called by whatever uses it; cheap and thread-safe.
void ensure_sodium();

inline const unsigned char* as_unsigned(std::string_view bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace mesh
