#include "common/identity/random.h"

#include <sodium.h>

#include "common/identity/sodium.h"

namespace mesh {

void fill_random(void* out, std::size_t count) {
  ensure_sodium();
  randombytes_buf(out, count);
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  fill_random(bytes.data(), count);
  return bytes;
}

std::uint64_t random_u64() {
  std::uint64_t value;
  fill_random(&value, sizeof value);
  return value;
}

}  // namespace mesh
