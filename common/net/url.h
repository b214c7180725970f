#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace mesh::net {

struct HostPort {
  /// Without the brackets of an IPv6 address.
  std::string host;
  int port = 0;

  /// "HOST:PORT", "[::1]:80".
  static StatusOr<HostPort> parse(std::string_view text);
  std::string text() const;
  friend bool operator==(const HostPort&, const HostPort&) = default;
};

/// http or https, no user or fragment.
struct Url {
  bool https = false;
  HostPort at;
  /// Path and query; "" when the URL has none.
  std::string path;

  static StatusOr<Url> parse(std::string_view text);
  /// Scheme, host and port.
  std::string origin() const;
};

/// Percent-encodes all but unreserved characters (RFC 3986), for one segment of a path or one value of a
/// query.
std::string percent_encode(std::string_view text);
/// kInvalidArgument on a stray % or a NUL.
StatusOr<std::string> percent_decode(std::string_view text);

}  // namespace mesh::net
