#include "common/identity/signed_message.h"

namespace mesh {
namespace {

std::string signed_text(std::string_view route, std::string_view body) {
  std::string text = "meshnet/1 ";
  text += route;
  text += '\n';
  text += body;
  return text;
}

}  // namespace

MessageSignature sign_message(const KeyPair& signer, std::string_view route, std::string_view body) {
  return {signer.public_key().hex(), signer.sign(signed_text(route, body)).hex()};
}

StatusOr<PublicKey> verify_message(std::string_view route, std::string_view body, std::string_view key_hex,
                                   std::string_view signature_hex) {
  if (key_hex.empty() || signature_hex.empty()) {
    return error(StatusCode::kUnauthenticated, "message is not signed: {} and {} are needed", kKeyHeader,
                 kSignatureHeader);
  }
  const auto key = PublicKey::parse(key_hex);
  if (!key) return error(StatusCode::kUnauthenticated, "{} should be 64 hex digits", kKeyHeader);
  const auto signature = Signature::parse(signature_hex);
  if (!signature) return error(StatusCode::kUnauthenticated, "{} should be 128 hex digits", kSignatureHeader);
  if (!verify(*key, signed_text(route, body), *signature)) {
    return error(StatusCode::kUnauthenticated,
                 "signature does not fit: the message or its route was changed, or another key signed");
  }
  return *key;
}

}  // namespace mesh
