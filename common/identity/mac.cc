#include "common/identity/mac.h"

#include <sodium.h>

#include "common/base/check.h"
#include "common/identity/sodium.h"

namespace mesh {

struct MacStream::State {
  crypto_generichash_state state;
  ~State() { sodium_memzero(&state, sizeof state); }
};

MacStream::MacStream(std::string_view key) : state_(std::make_unique<State>()) {
  ensure_sodium();
  MESH_CHECK(key.size() >= crypto_generichash_KEYBYTES_MIN && key.size() <= crypto_generichash_KEYBYTES_MAX);
  crypto_generichash_init(&state_->state, as_unsigned(key), key.size(), Mac::kSize);
}
MacStream::~MacStream() = default;
MacStream::MacStream(MacStream&&) noexcept = default;
MacStream& MacStream::operator=(MacStream&&) noexcept = default;

MacStream& MacStream::update(std::string_view bytes) {
  crypto_generichash_update(&state_->state, as_unsigned(bytes), bytes.size());
  return *this;
}

Mac MacStream::finish() {
  Mac mac;
  crypto_generichash_final(&state_->state, mac.bytes.data(), mac.bytes.size());
  return mac;
}

Mac compute_mac(const SessionSecret& secret, std::initializer_list<std::string_view> pieces) {
  MacStream stream(secret);
  for (const std::string_view piece : pieces) stream.update(piece);
  return stream.finish();
}

bool equal_mac(const Mac& a, const Mac& b) {
  return sodium_memcmp(a.bytes.data(), b.bytes.data(), Mac::kSize) == 0;
}

bool verify_mac(const SessionSecret& secret, std::initializer_list<std::string_view> pieces, const Mac& mac) {
  return equal_mac(compute_mac(secret, pieces), mac);
}

}  // namespace mesh
