#pragma once

#include <string>

#include "common/base/status.h"

struct sqlite3;

namespace mesh::tracker {

/// Brings the file up to this program's schema, one transaction per version (SQLite's user_version).
/// kFailedPrecondition for a file of a newer program.
Status migrate(sqlite3* db, const std::string& path);

}  // namespace mesh::tracker
