#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/net/server.h"

namespace mesh::tracker {

/// Who may call a tracker. Keys are kept hashed and compared in constant time.
///  kAnyone, kSession: everybody (the handler of kSession checks MACs).
///  kApiKey: "Authorization: Bearer KEY" with one of the keys; this machine when there are none.
///  kAdmin: this machine (net::is_local_caller); from others the admin key as Bearer, or nobody when there is
///  none. kNode: a message that its sender signed; the principal becomes the signer's NodeId in hex.
class TrackerAccess final : public net::AccessPolicy {
 public:
  TrackerAccess(const std::vector<std::string>& api_keys, const std::string& admin_key);

  Status admit(net::Access access, net::Request& request) override;
  Status admit_body(net::Access access, net::Request& request) override;

 private:
  std::vector<Sha256> api_keys_;
  std::vector<Sha256> admin_keys_;  ///< none or one
};

}  // namespace mesh::tracker
