#include "tracker/runtime/access.h"

#include <optional>

#include "common/identity/sha256.h"
#include "common/identity/signed_message.h"
#include "common/json/error_fields.h"
#include "common/net/local_caller.h"

namespace mesh::tracker {
namespace {

constexpr std::string_view kBearer = "Bearer ";

/// In time that depends on the number of keys alone.
std::optional<std::size_t> position_of(const std::vector<Sha256>& keys, std::string_view given) {
  const Sha256 hash = sha256(given);
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    unsigned difference = 0;
    for (std::size_t byte = 0; byte < Sha256::kSize; ++byte)
      difference |= keys[i].bytes[byte] ^ hash.bytes[byte];
    if (difference == 0) found = i;
  }
  return found;
}

std::string_view bearer_of(const net::Request& request) {
  const std::string_view header = request.headers.get("Authorization");
  return header.starts_with(kBearer) ? header.substr(kBearer.size()) : std::string_view();
}

}  // namespace

TrackerAccess::TrackerAccess(const std::vector<std::string>& api_keys, const std::string& admin_key) {
  for (const std::string& key : api_keys) api_keys_.push_back(sha256(key));
  if (!admin_key.empty()) admin_keys_.push_back(sha256(admin_key));
}

Status TrackerAccess::admit(net::Access access, net::Request& request) {
  switch (access) {
    case net::Access::kAnyone:
    case net::Access::kSession:
      return absl::OkStatus();
    case net::Access::kApiKey: {
      if (api_keys_.empty()) {
        if (net::is_local_caller(request)) return absl::OkStatus();
        return error(
            StatusCode::kPermissionDenied,
            "without API keys only programs of this machine are answered; this request was passed on by a "
            "proxy, or a browser sent it for a web page of elsewhere or under a name: start the tracker with "
            "--api-key");
      }
      const auto which = position_of(api_keys_, bearer_of(request));
      if (!which) {
        return json::with_code(
            error(StatusCode::kUnauthenticated,
                  "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'"),
            "invalid_api_key");
      }
      request.principal = fmt::format("key-{}", *which + 1);
      return absl::OkStatus();
    }
    case net::Access::kAdmin:
      if (net::is_local_caller(request) || position_of(admin_keys_, bearer_of(request)))
        return absl::OkStatus();
      return error(
          StatusCode::kUnauthenticated,
          "from another machine, through a proxy or for a web page of elsewhere this needs the admin key "
          "(--admin-key) as 'Authorization: Bearer KEY'");
    case net::Access::kNode:
      if (!request.headers.get(kSignatureHeader).empty()) return absl::OkStatus();
      return json::with_code(error(StatusCode::kUnauthenticated,
                                   "this takes signed messages only: {} is missing", kSignatureHeader),
                             "signature");
  }
  return error(StatusCode::kPermissionDenied, "not allowed");
}

Status TrackerAccess::admit_body(net::Access access, net::Request& request) {
  if (access != net::Access::kNode) return absl::OkStatus();
  const auto key = verify_message(request.path, request.body, request.headers.get(kKeyHeader),
                                  request.headers.get(kSignatureHeader));
  if (!key.ok()) return json::with_code(key.status(), "signature");
  request.principal = node_id_of(*key).hex();
  return absl::OkStatus();
}

}  // namespace mesh::tracker
