#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace mesh::net {

enum class AddressKind {
  kLoopback,
  /// RFC 1918, fc00::/7.
  kPrivate,
  /// 100.64.0.0/10 (RFC 6598).
  kCgnat,
  /// 169.254.0.0/16, fe80::/10: home of cloud metadata services.
  kLinkLocal,
  kPublic,
  /// Unspecified, multicast, documentation, translated and other addresses that name no host: never allowed.
  kReserved,
};
std::string_view to_string(AddressKind kind);

/// Class of a numeric IPv4 or IPv6 address. IPv4 inside IPv6 (::ffff:0:0/96) has the class of the IPv4
/// address.
StatusOr<AddressKind> classify_address(std::string_view ip);
/// The same for a host as people write it: localhost is loopback, other names are errors.
StatusOr<AddressKind> classify_host(std::string_view host);
/// Whether a host is this machine's own loopback.
bool is_loopback(std::string_view host);

/// Which classes of address a program may connect to when a stranger names the host.
class AddressPolicy {
 public:
  /// Everything but reserved addresses: for addresses that the program's owner typed.
  static AddressPolicy any();
  /// "public,private,loopback,cgnat,link-local".
  static StatusOr<AddressPolicy> parse(std::string_view list);
  /// The default for peers of a program that listens on `own`: its own kind and wider. Loopback allows any(),
  /// public public alone, the others (0.0.0.0 too) themselves, private and public.
  static AddressPolicy for_peers_of(AddressKind own);

  bool allows(AddressKind kind) const { return kinds_.contains(kind); }
  std::string text() const;

 private:
  std::set<AddressKind> kinds_;
};

/// Resolves `host` once; the numeric addresses that `policy` allows. kPermissionDenied names the class when
/// none is, kUnavailable when the name does not resolve. Connect to these, never to the name again.
StatusOr<std::vector<std::string>> resolve_allowed(const std::string& host, const AddressPolicy& policy);

}  // namespace mesh::net
