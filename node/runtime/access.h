#pragma once

#include <functional>
#include <optional>

#include "common/identity/join_key.h"
#include "common/net/server.h"
#include "node/runtime/fault_points.h"

namespace mesh {

/// Who may call a node. kNode: a signed message, principal becomes the signer's NodeId in hex. kSession: the
/// handler checks MACs. kApiKey and kAdmin (forward, metrics): this machine (net::is_local_caller), or a
/// proof of the join key over the body.
class NodeAccess final : public net::AccessPolicy {
 public:
  explicit NodeAccess(std::optional<JoinKey> join_key, FaultPoints* faults = nullptr)
      : join_key_(std::move(join_key)), faults_(faults) {}

  Status admit(net::Access access, net::Request& request) override;
  Status admit_body(net::Access access, net::Request& request) override;

 private:
  const std::optional<JoinKey> join_key_;
  FaultPoints* const faults_;
};

}  // namespace mesh
