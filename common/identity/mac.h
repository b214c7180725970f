#pragma once

#include <initializer_list>
#include <memory>
#include <string_view>

#include "common/base/ids.h"

namespace mesh {

/// 16 bytes of BLAKE2b keyed with a secret (RFC 7693).
using Mac = OpaqueId<struct MacTag, 16>;

/// MAC over bytes that come in pieces; the MAC is that of their concatenation.
class MacStream {
 public:
  explicit MacStream(const SessionSecret& secret) : MacStream(secret.view()) {}
  /// `key`: 16 to 64 bytes.
  explicit MacStream(std::string_view key);
  ~MacStream();
  MacStream(MacStream&&) noexcept;
  MacStream& operator=(MacStream&&) noexcept;

  MacStream& update(std::string_view bytes);
  /// Call once.
  Mac finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Mac compute_mac(const SessionSecret& secret, std::initializer_list<std::string_view> pieces);
/// In time that does not depend on the bytes.
bool equal_mac(const Mac& a, const Mac& b);
bool verify_mac(const SessionSecret& secret, std::initializer_list<std::string_view> pieces, const Mac& mac);

}  // namespace mesh
