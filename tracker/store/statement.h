#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace mesh::tracker {

/// One prepared statement, bound from left to right and stepped once or row by row. Errors of any call are
/// kept and given out by the next step() or done().
class Statement {
 public:
  Statement(sqlite3* db, std::string_view sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& text(std::string_view value);
  Statement& blob(std::string_view value);
  Statement& integer(std::int64_t value);

  /// True: a row is there; false: none left.
  StatusOr<bool> step();
  /// Steps to the end.
  Status done();

  std::string column_bytes(int column) const;
  std::int64_t column_integer(int column) const;

 private:
  Status failure() const;

  sqlite3* db_;
  sqlite3_stmt* statement_ = nullptr;
  int next_ = 1;
  int code_;
};

/// Runs statements without results.
Status execute(sqlite3* db, const char* sql);

}  // namespace mesh::tracker
