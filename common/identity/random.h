#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/ids.h"

namespace mesh {

/// Bytes from the system's cryptographic generator.
void fill_random(void* out, std::size_t count);
std::string random_bytes(std::size_t count);
std::uint64_t random_u64();

/// A fresh id or secret, e.g. random_id<SessionId>().
template <class Id>
Id random_id() {
  Id id;
  fill_random(id.bytes.data(), id.bytes.size());
  return id;
}

}  // namespace mesh
