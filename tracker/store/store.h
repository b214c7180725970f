#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "tracker/store/membership_store.h"

struct sqlite3;

namespace mesh::tracker {

/// The tracker's SQLite file (WAL, synchronous=FULL: what a call returned from survives a kill). One
/// connection, one thread at a time. Migrations only go forward; a file of a newer program is refused with
/// both versions named.
class Store final : public MembershipStore {
 public:
  /// Creates or migrates `path`.
  static StatusOr<Store> open(const std::string& path);
  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  ~Store() override;

  /// A small value by name ("identity.seed", "join.secret"); empty when unset.
  StatusOr<std::string> value(std::string_view name);
  Status set_value(std::string_view name, std::string_view value);

  /// Highest epoch ever stored.
  StatusOr<Epoch> epoch();

  // MembershipStore
  StatusOr<Epoch> next_epoch(Epoch at_least) override;
  Status put_node(const StoredNode& node) override;
  Status erase_node(const NodeId& id) override;
  StatusOr<std::vector<StoredNode>> nodes() override;
  /// Long outcomes are cut, and about the newest `keep_directives()` lines stay.
  Status log_directive(const StoredDirective& directive) override;
  void keep_directives(std::int64_t lines) { kept_directives_ = lines; }

  /// The newest `limit` lines, newest first.
  StatusOr<std::vector<StoredDirective>> directives(std::size_t limit);

 private:
  explicit Store(sqlite3* db) : db_(db) {}

  std::int64_t kept_directives_ = 10'000;
  sqlite3* db_ = nullptr;
};

}  // namespace mesh::tracker
