#include "tracker/store/migrations.h"

#include <array>
#include <cstdint>

#include "tracker/store/statement.h"

namespace mesh::tracker {
namespace {

/// Entry i leads from version i to i + 1. Only ever append.
constexpr std::array kSteps = {
    // 0 → 1
    "CREATE TABLE value(name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE node(id BLOB PRIMARY KEY, public_key BLOB NOT NULL, join_json TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE directive(line INTEGER PRIMARY KEY, id TEXT NOT NULL, node BLOB NOT NULL, epoch INTEGER "
    "NOT NULL,"
    " body TEXT NOT NULL, outcome TEXT NOT NULL, unix_ms INTEGER NOT NULL);"
    "INSERT INTO value VALUES('epoch', '0');",
};

}  // namespace

Status migrate(sqlite3* db, const std::string& path) {
  std::int64_t version = 0;
  {
    Statement read(db, "PRAGMA user_version");
    MESH_ASSIGN_OR_RETURN(const bool row, read.step());
    if (row) version = read.column_integer(0);
  }
  if (version < 0 || version > static_cast<std::int64_t>(kSteps.size())) {
    return error(
        StatusCode::kFailedPrecondition,
        "{} has schema version {}, this program knows up to {}: start the newer program, or give another "
        "--data-dir",
        path, version, kSteps.size());
  }
  for (auto next = static_cast<std::size_t>(version); next < kSteps.size(); ++next) {
    MESH_RETURN_IF_ERROR(execute(db, "BEGIN IMMEDIATE"));
    Status status = execute(db, kSteps[next]);
    if (status.ok()) status = execute(db, fmt::format("PRAGMA user_version={}", next + 1).c_str());
    if (status.ok()) status = execute(db, "COMMIT");
    if (!status.ok()) {
      execute(db, "ROLLBACK").IgnoreError();
      return with_context(status, path);
    }
  }
  return absl::OkStatus();
}

}  // namespace mesh::tracker
