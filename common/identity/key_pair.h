#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/status.h"

namespace mesh {

/// An ed25519 public key.
using PublicKey = OpaqueId<struct PublicKeyTag, 32>;
/// An ed25519 signature (RFC 8032).
using Signature = OpaqueId<struct SignatureTag, 64>;

/// SHA-256 of the key.
NodeId node_id_of(const PublicKey& key);

/// A program's identity. The secret half never leaves the object but for save(), and is wiped with it.
class KeyPair {
 public:
  static KeyPair generate();
  /// The same pair for the same seed.
  static KeyPair from_seed(const std::array<std::uint8_t, 32>& seed);
  /// kNotFound when there is no file; kFailedPrecondition when others may read it or it is no key file.
  static StatusOr<KeyPair> load(const std::filesystem::path& file);
  /// Loads `file`, or makes a pair and saves it there (folders too) when there is none.
  static StatusOr<KeyPair> load_or_create(const std::filesystem::path& file);

  ~KeyPair();
  KeyPair(const KeyPair&) = default;
  KeyPair& operator=(const KeyPair&) = default;

  /// Writes a file that only its owner can read (mode 0600), at once or not at all; kAlreadyExists never
  /// overwrites.
  Status save(const std::filesystem::path& file) const;

  const PublicKey& public_key() const { return public_key_; }
  const NodeId& id() const { return id_; }
  Signature sign(std::string_view message) const;
  /// The text that seal() closed for this pair's public key.
  StatusOr<std::string> open_sealed(std::string_view sealed) const;

 private:
  KeyPair() = default;

  PublicKey public_key_;
  NodeId id_;
  std::array<std::uint8_t, 64> secret_{};
};

bool verify(const PublicKey& key, std::string_view message, const Signature& signature);

/// `plain` for the holder of `recipient`'s secret half alone (crypto_box_seal on the converted key): 48 bytes
/// longer. Anyone can seal; the sender is not proven.
StatusOr<std::string> seal(const PublicKey& recipient, std::string_view plain);

}  // namespace mesh
