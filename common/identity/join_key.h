#pragma once

#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/identity/key_pair.h"
#include "common/identity/mac.h"

namespace mesh {

/// Lets a node join and pins the tracker's key. Text: mesh1.<64 hex digits: secret>.<64 hex digits: SHA-256
/// of the tracker's public key>.
class JoinKey {
 public:
  static JoinKey make(const PublicKey& tracker);
  /// The message never repeats the text.
  static StatusOr<JoinKey> parse(std::string_view text);

  std::string text() const;
  const Sha256& tracker_hash() const { return tracker_hash_; }
  /// Whether `tracker` is the key that this one pins.
  bool pins(const PublicKey& tracker) const;

  /// Shows that the sender of `body` knows the secret, without telling it.
  Mac prove(std::string_view body) const;
  bool verify_proof(std::string_view body, const Mac& proof) const;

 private:
  JoinKey() = default;

  SessionSecret secret_;
  Sha256 tracker_hash_;
};

}  // namespace mesh
