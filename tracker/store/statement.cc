#include "tracker/store/statement.h"

#include <sqlite3.h>

namespace mesh::tracker {
namespace {

StatusCode code_for(int sqlite_code) {
  switch (sqlite_code & 0xff) {
    case SQLITE_FULL:
      return StatusCode::kResourceExhausted;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return StatusCode::kUnavailable;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return StatusCode::kDataLoss;
    default:
      return StatusCode::kInternal;
  }
}

}  // namespace

Statement::Statement(sqlite3* db, std::string_view sql) : db_(db) {
  code_ = sqlite3_prepare_v2(db, sql.data(), static_cast<int>(sql.size()), &statement_, nullptr);
}

Statement::~Statement() {
  sqlite3_finalize(statement_);
}

Statement& Statement::text(std::string_view value) {
  if (code_ == SQLITE_OK) {
    code_ =
        sqlite3_bind_text64(statement_, next_++, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  }
  return *this;
}

Statement& Statement::blob(std::string_view value) {
  if (code_ == SQLITE_OK) {
    // A null pointer would bind NULL.
    const char* data = value.empty() ? "" : value.data();
    code_ = sqlite3_bind_blob64(statement_, next_++, data, value.size(), SQLITE_TRANSIENT);
  }
  return *this;
}

Statement& Statement::integer(std::int64_t value) {
  if (code_ == SQLITE_OK) code_ = sqlite3_bind_int64(statement_, next_++, value);
  return *this;
}

StatusOr<bool> Statement::step() {
  if (code_ != SQLITE_OK) return failure();
  const int result = sqlite3_step(statement_);
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) return false;
  code_ = result;
  return failure();
}

Status Statement::done() {
  while (true) {
    MESH_ASSIGN_OR_RETURN(const bool row, step());
    if (!row) return absl::OkStatus();
  }
}

std::string Statement::column_bytes(int column) const {
  const auto* data = static_cast<const char*>(sqlite3_column_blob(statement_, column));
  const int size = sqlite3_column_bytes(statement_, column);
  return data == nullptr ? std::string() : std::string(data, static_cast<std::size_t>(size));
}

std::int64_t Statement::column_integer(int column) const {
  return sqlite3_column_int64(statement_, column);
}

Status Statement::failure() const {
  return error(code_for(code_), "store: {}", sqlite3_errmsg(db_));
}

Status execute(sqlite3* db, const char* sql) {
  const int code = sqlite3_exec(db, sql, nullptr, nullptr, nullptr);
  if (code == SQLITE_OK) return absl::OkStatus();
  return error(code_for(code), "store: {}", sqlite3_errmsg(db));
}

}  // namespace mesh::tracker
