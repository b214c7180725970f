#pragma once

#include <concepts>
#include <optional>

namespace mesh {

/// a · b, or nothing on overflow. For sizes that come from a peer, a file or a client.
template <std::integral T>
std::optional<T> checked_mul(T a, T b) {
  T result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// a + b, or nothing on overflow.
template <std::integral T>
std::optional<T> checked_add(T a, T b) {
  T result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

}  // namespace mesh
