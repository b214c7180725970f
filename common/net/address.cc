#include "common/net/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

namespace mesh::net {
namespace {

constexpr std::pair<AddressKind, std::string_view> kNames[] = {
    {AddressKind::kLoopback, "loopback"}, {AddressKind::kPrivate, "private"},
    {AddressKind::kCgnat, "cgnat"},       {AddressKind::kLinkLocal, "link-local"},
    {AddressKind::kPublic, "public"},     {AddressKind::kReserved, "reserved"},
};

struct Block4 {
  std::uint32_t network;
  int bits;
  AddressKind kind;
};

constexpr std::uint32_t ip4(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  return a << 24 | b << 16 | c << 8 | d;
}

// IANA's special-purpose registry (RFC 6890 and its updates).
constexpr Block4 kBlocks4[] = {
    {ip4(127, 0, 0, 0), 8, AddressKind::kLoopback},    {ip4(10, 0, 0, 0), 8, AddressKind::kPrivate},
    {ip4(172, 16, 0, 0), 12, AddressKind::kPrivate},   {ip4(192, 168, 0, 0), 16, AddressKind::kPrivate},
    {ip4(100, 64, 0, 0), 10, AddressKind::kCgnat},     {ip4(169, 254, 0, 0), 16, AddressKind::kLinkLocal},
    {ip4(0, 0, 0, 0), 8, AddressKind::kReserved},      {ip4(192, 0, 0, 0), 24, AddressKind::kReserved},
    {ip4(192, 0, 2, 0), 24, AddressKind::kReserved},   {ip4(192, 88, 99, 0), 24, AddressKind::kReserved},
    {ip4(198, 18, 0, 0), 15, AddressKind::kReserved},  {ip4(198, 51, 100, 0), 24, AddressKind::kReserved},
    {ip4(203, 0, 113, 0), 24, AddressKind::kReserved}, {ip4(224, 0, 0, 0), 3, AddressKind::kReserved},
};

AddressKind classify4(std::uint32_t address) {
  for (const Block4& block : kBlocks4) {
    if ((address ^ block.network) >> (32 - block.bits) == 0) return block.kind;
  }
  return AddressKind::kPublic;
}

AddressKind classify6(const std::array<std::uint8_t, 16>& bytes) {
  const bool first_ten_zero =
      std::all_of(bytes.begin(), bytes.begin() + 10, [](std::uint8_t b) { return b == 0; });
  if (first_ten_zero && bytes[10] == 0xff && bytes[11] == 0xff) {
    return classify4(ip4(bytes[12], bytes[13], bytes[14], bytes[15]));
  }
  if (first_ten_zero && bytes[10] == 0 && bytes[11] == 0) {
    const bool is_one = bytes[12] == 0 && bytes[13] == 0 && bytes[14] == 0 && bytes[15] == 1;
    return is_one ? AddressKind::kLoopback : AddressKind::kReserved;
  }
  if ((bytes[0] & 0xfe) == 0xfc) return AddressKind::kPrivate;
  if (bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80) return AddressKind::kLinkLocal;
  const bool is_global_unicast = (bytes[0] & 0xe0) == 0x20;
  const bool is_6to4 = bytes[0] == 0x20 && bytes[1] == 0x02;
  const bool is_documentation = bytes[0] == 0x20 && bytes[1] == 0x01 && bytes[2] == 0x0d && bytes[3] == 0xb8;
  // 2001::/23: Teredo and other protocol assignments.
  const bool is_protocol = bytes[0] == 0x20 && bytes[1] == 0x01 && bytes[2] < 2;
  if (!is_global_unicast || is_6to4 || is_documentation || is_protocol) return AddressKind::kReserved;
  return AddressKind::kPublic;
}

}  // namespace

std::string_view to_string(AddressKind kind) {
  for (const auto& [known, name] : kNames) {
    if (known == kind) return name;
  }
  return "reserved";
}

StatusOr<AddressKind> classify_address(std::string_view ip) {
  const std::string text(ip.substr(0, ip.find('%')));
  in_addr four{};
  if (::inet_pton(AF_INET, text.c_str(), &four) == 1) return classify4(ntohl(four.s_addr));
  std::array<std::uint8_t, 16> six{};
  if (::inet_pton(AF_INET6, text.c_str(), six.data()) == 1) return classify6(six);
  return error(StatusCode::kInvalidArgument, "'{:.64}' is not an IP address", ip);
}

StatusOr<AddressKind> classify_host(std::string_view host) {
  return classify_address(host == "localhost" ? "127.0.0.1" : host);
}

bool is_loopback(std::string_view host) {
  const auto kind = classify_host(host);
  return kind.ok() && *kind == AddressKind::kLoopback;
}

AddressPolicy AddressPolicy::any() {
  AddressPolicy policy;
  policy.kinds_ = {AddressKind::kLoopback, AddressKind::kPrivate, AddressKind::kCgnat,
                   AddressKind::kLinkLocal, AddressKind::kPublic};
  return policy;
}

StatusOr<AddressPolicy> AddressPolicy::parse(std::string_view list) {
  AddressPolicy policy;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string_view word = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    const auto* known =
        std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& n) { return n.second == word; });
    if (known == std::end(kNames) || known->first == AddressKind::kReserved) {
      return error(StatusCode::kInvalidArgument,
                   "'{:.64}' is no class of addresses: use public, private, loopback, cgnat, link-local",
                   word);
    }
    policy.kinds_.insert(known->first);
  }
  if (policy.kinds_.empty())
    return error(StatusCode::kInvalidArgument, "the list of address classes is empty");
  return policy;
}

AddressPolicy AddressPolicy::for_peers_of(AddressKind own) {
  if (own == AddressKind::kLoopback) return any();
  AddressPolicy policy;
  policy.kinds_ = {AddressKind::kPublic};
  if (own != AddressKind::kPublic) policy.kinds_.insert({own, AddressKind::kPrivate});
  policy.kinds_.erase(AddressKind::kReserved);
  return policy;
}

std::string AddressPolicy::text() const {
  std::string list;
  for (const AddressKind kind : kinds_) {
    if (!list.empty()) list += ',';
    list += to_string(kind);
  }
  return list;
}

StatusOr<std::vector<std::string>> resolve_allowed(const std::string& host, const AddressPolicy& policy) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  if (classify_address(host).ok()) hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failure != 0) {
    return error(StatusCode::kUnavailable, "cannot resolve {}: {}", host, ::gai_strerror(failure));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<std::string> allowed;
  std::string refused;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    char text[NI_MAXHOST];
    if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    const auto kind = classify_address(text);
    if (!kind.ok()) continue;
    if (policy.allows(*kind)) {
      if (std::find(allowed.begin(), allowed.end(), text) == allowed.end()) allowed.emplace_back(text);
    } else {
      refused = fmt::format("{} ({})", text, to_string(*kind));
    }
  }
  if (allowed.empty()) {
    return error(StatusCode::kPermissionDenied, "{} resolves to {}; allowed are {} addresses", host, refused,
                 policy.text());
  }
  return allowed;
}

}  // namespace mesh::net
