#include "common/identity/sha256.h"

#include <sodium.h>

#include "common/identity/sodium.h"

namespace mesh {

struct Sha256Stream::State {
  crypto_hash_sha256_state state;
};

Sha256Stream::Sha256Stream() : state_(std::make_unique<State>()) {
  ensure_sodium();
  crypto_hash_sha256_init(&state_->state);
}
Sha256Stream::~Sha256Stream() = default;
Sha256Stream::Sha256Stream(const Sha256Stream& other) : state_(std::make_unique<State>(*other.state_)) {}
Sha256Stream& Sha256Stream::operator=(const Sha256Stream& other) {
  *state_ = *other.state_;
  return *this;
}
Sha256Stream::Sha256Stream(Sha256Stream&&) noexcept = default;
Sha256Stream& Sha256Stream::operator=(Sha256Stream&&) noexcept = default;

Sha256Stream& Sha256Stream::update(std::string_view bytes) {
  crypto_hash_sha256_update(&state_->state, as_unsigned(bytes), bytes.size());
  return *this;
}

Sha256 Sha256Stream::finish() {
  Sha256 digest;
  crypto_hash_sha256_final(&state_->state, digest.bytes.data());
  crypto_hash_sha256_init(&state_->state);
  return digest;
}

Sha256 sha256(std::string_view bytes) {
  ensure_sodium();
  Sha256 digest;
  crypto_hash_sha256(digest.bytes.data(), as_unsigned(bytes), bytes.size());
  return digest;
}

}  // namespace mesh
