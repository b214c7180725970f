#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"

namespace mesh::tracker {

/// A node as stored: enough to count its layers as held after a start.
struct StoredNode {
  NodeId id;
  std::string public_key;  ///< 32 bytes
  std::string join_json;   ///< its last join with the shards of its last heartbeat, wire::to_json

  friend bool operator==(const StoredNode&, const StoredNode&) = default;
};

/// One line of the audit log of directives.
struct StoredDirective {
  std::string id;  ///< hex
  NodeId node;
  Epoch epoch;
  std::string body;     ///< as signed
  std::string outcome;  ///< "issued", "done", "failed: …", "expired"
  std::int64_t unix_ms = 0;

  friend bool operator==(const StoredDirective&, const StoredDirective&) = default;
};

/// What the mesh's membership must not forget. What a call returned from is on disk. One thread at a time.
class MembershipStore {
 public:
  virtual ~MembershipStore() = default;

  /// max(stored, `at_least`) + 1, on disk before it is returned.
  virtual StatusOr<Epoch> next_epoch(Epoch at_least) = 0;
  virtual Status put_node(const StoredNode& node) = 0;
  virtual Status erase_node(const NodeId& id) = 0;
  virtual StatusOr<std::vector<StoredNode>> nodes() = 0;
  virtual Status log_directive(const StoredDirective& directive) = 0;
};

}  // namespace mesh::tracker
