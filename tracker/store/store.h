#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"

struct sqlite3;

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

/// The tracker's SQLite file (WAL, synchronous=FULL: what a call returned from survives a kill). One
/// connection, one thread at a time. Migrations only go forward; a file of a newer program is refused with
/// both versions named.
class Store {
 public:
  /// Creates or migrates `path`.
  static StatusOr<Store> open(const std::string& path);
  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  ~Store();

  /// A small value by name ("identity.seed", "join.secret"); empty when unset.
  StatusOr<std::string> value(std::string_view name);
  Status set_value(std::string_view name, std::string_view value);

  /// Highest epoch ever stored.
  StatusOr<Epoch> epoch();
  /// max(stored, `at_least`) + 1, on disk before it is returned.
  StatusOr<Epoch> next_epoch(Epoch at_least);

  Status put_node(const StoredNode& node);
  Status erase_node(const NodeId& id);
  StatusOr<std::vector<StoredNode>> nodes();

  Status log_directive(const StoredDirective& directive);
  /// The newest `limit` lines, newest first.
  StatusOr<std::vector<StoredDirective>> directives(std::size_t limit);

 private:
  explicit Store(sqlite3* db) : db_(db) {}

  sqlite3* db_ = nullptr;
};

}  // namespace mesh::tracker
