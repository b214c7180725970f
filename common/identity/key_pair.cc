#include "common/identity/key_pair.h"

#include <sodium.h>

#include "common/base/check.h"
#include "common/identity/sha256.h"
#include "common/identity/sodium.h"

namespace mesh {

NodeId node_id_of(const PublicKey& key) {
  return NodeId{sha256(key.view()).bytes};
}

KeyPair KeyPair::generate() {
  ensure_sodium();
  KeyPair pair;
  crypto_sign_keypair(pair.public_key_.bytes.data(), pair.secret_.data());
  pair.id_ = node_id_of(pair.public_key_);
  return pair;
}

KeyPair KeyPair::from_seed(const std::array<std::uint8_t, 32>& seed) {
  ensure_sodium();
  KeyPair pair;
  crypto_sign_seed_keypair(pair.public_key_.bytes.data(), pair.secret_.data(), seed.data());
  pair.id_ = node_id_of(pair.public_key_);
  return pair;
}

KeyPair::~KeyPair() {
  sodium_memzero(secret_.data(), secret_.size());
}

Signature KeyPair::sign(std::string_view message) const {
  Signature signature;
  crypto_sign_detached(signature.bytes.data(), nullptr, as_unsigned(message), message.size(), secret_.data());
  return signature;
}

bool verify(const PublicKey& key, std::string_view message, const Signature& signature) {
  ensure_sodium();
  return crypto_sign_verify_detached(signature.bytes.data(), as_unsigned(message), message.size(),
                                     key.bytes.data()) == 0;
}

StatusOr<std::string> seal(const PublicKey& recipient, std::string_view plain) {
  ensure_sodium();
  std::array<unsigned char, crypto_box_PUBLICKEYBYTES> box_key;
  if (crypto_sign_ed25519_pk_to_curve25519(box_key.data(), recipient.bytes.data()) != 0) {
    return error(StatusCode::kInvalidArgument, "{} is not an ed25519 public key", recipient.hex());
  }
  std::string sealed(plain.size() + crypto_box_SEALBYTES, '\0');
  const int result = crypto_box_seal(reinterpret_cast<unsigned char*>(sealed.data()), as_unsigned(plain),
                                     plain.size(), box_key.data());
  if (result != 0) return error(StatusCode::kInvalidArgument, "sealing to {} failed", recipient.hex());
  return sealed;
}

StatusOr<std::string> KeyPair::open_sealed(std::string_view sealed) const {
  if (sealed.size() < crypto_box_SEALBYTES) {
    return error(StatusCode::kInvalidArgument, "sealed text of {} bytes; the shortest has {}", sealed.size(),
                 static_cast<std::size_t>(crypto_box_SEALBYTES));
  }
  std::array<unsigned char, crypto_box_PUBLICKEYBYTES> box_public;
  std::array<unsigned char, crypto_box_SECRETKEYBYTES> box_secret;
  MESH_CHECK(crypto_sign_ed25519_pk_to_curve25519(box_public.data(), public_key_.bytes.data()) == 0);
  MESH_CHECK(crypto_sign_ed25519_sk_to_curve25519(box_secret.data(), secret_.data()) == 0);
  std::string plain(sealed.size() - crypto_box_SEALBYTES, '\0');
  const int result = crypto_box_seal_open(reinterpret_cast<unsigned char*>(plain.data()), as_unsigned(sealed),
                                          sealed.size(), box_public.data(), box_secret.data());
  sodium_memzero(box_secret.data(), box_secret.size());
  if (result != 0) {
    return error(StatusCode::kUnauthenticated, "sealed text is not for this key, or was changed on its way");
  }
  return plain;
}

}  // namespace mesh
