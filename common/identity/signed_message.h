#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/identity/key_pair.h"

namespace mesh {

/// Headers of signed control messages and of their replies.
inline constexpr std::string_view kKeyHeader = "X-Meshnet-Key";
inline constexpr std::string_view kSignatureHeader = "X-Meshnet-Signature";
inline constexpr std::string_view kJoinHeader = "X-Meshnet-Join";

/// Values of kKeyHeader and kSignatureHeader.
struct MessageSignature {
  std::string key_hex;
  std::string signature_hex;
};

/// Signs "meshnet/1 ROUTE\n" + body; `route` is the path of the request, for its reply too.
MessageSignature sign_message(const KeyPair& signer, std::string_view route, std::string_view body);

/// The key that signed, or kUnauthenticated. Whether that key may say this is the caller's question.
StatusOr<PublicKey> verify_message(std::string_view route, std::string_view body, std::string_view key_hex,
                                   std::string_view signature_hex);

}  // namespace mesh
