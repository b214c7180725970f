#include "tracker/store/store.h"

#include <sqlite3.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "tracker/store/migrations.h"
#include "tracker/store/statement.h"

namespace mesh::tracker {
namespace {

constexpr int kBusyMilliseconds = 5000;
constexpr std::string_view kEpoch = "epoch";
constexpr std::size_t kMostOutcomeBytes = 4096;
/// Lines between two looks for those that are too old: each change of the file is waited for.
constexpr std::int64_t kTrimEvery = 100;

}  // namespace

StatusOr<Store> Store::open(const std::string& path) {
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &db,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Store store(db);
  if (code != SQLITE_OK) {
    return error(StatusCode::kUnavailable, "cannot open the store {}: {}", path,
                 db == nullptr ? "out of memory" : sqlite3_errmsg(db));
  }
  sqlite3_busy_timeout(db, kBusyMilliseconds);
  MESH_RETURN_IF_ERROR(with_context(execute(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"), path));
  MESH_RETURN_IF_ERROR(migrate(db, path));
  return store;
}

Store::Store(Store&& other) noexcept
    : kept_directives_(other.kept_directives_), db_(std::exchange(other.db_, nullptr)) {}

Store& Store::operator=(Store&& other) noexcept {
  std::swap(db_, other.db_);
  kept_directives_ = other.kept_directives_;
  return *this;
}

Store::~Store() {
  sqlite3_close_v2(db_);
}

StatusOr<std::string> Store::value(std::string_view name) {
  Statement read(db_, "SELECT value FROM value WHERE name=?");
  read.text(name);
  MESH_ASSIGN_OR_RETURN(const bool row, read.step());
  return row ? read.column_bytes(0) : std::string();
}

Status Store::set_value(std::string_view name, std::string_view value) {
  return Statement(db_, "INSERT OR REPLACE INTO value VALUES(?,?)").text(name).blob(value).done();
}

StatusOr<Epoch> Store::epoch() {
  MESH_ASSIGN_OR_RETURN(const std::string text, value(kEpoch));
  Epoch epoch;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), epoch.value);
  if (code != std::errc() || end != text.data() + text.size()) {
    return error(StatusCode::kDataLoss, "store: the epoch is no number");
  }
  return epoch;
}

StatusOr<Epoch> Store::next_epoch(Epoch at_least) {
  MESH_ASSIGN_OR_RETURN(const Epoch stored, epoch());
  const Epoch next = std::max(stored, at_least).next();
  MESH_RETURN_IF_ERROR(set_value(kEpoch, std::to_string(next.value)));
  return next;
}

Status Store::put_node(const StoredNode& node) {
  return Statement(db_, "INSERT OR REPLACE INTO node VALUES(?,?,?)")
      .blob(node.id.view())
      .blob(node.public_key)
      .text(node.join_json)
      .done();
}

Status Store::erase_node(const NodeId& id) {
  return Statement(db_, "DELETE FROM node WHERE id=?").blob(id.view()).done();
}

StatusOr<std::vector<StoredNode>> Store::nodes() {
  Statement read(db_, "SELECT id, public_key, join_json FROM node ORDER BY id");
  std::vector<StoredNode> nodes;
  while (true) {
    MESH_ASSIGN_OR_RETURN(const bool row, read.step());
    if (!row) return nodes;
    const auto id = NodeId::from_bytes(read.column_bytes(0));
    if (!id) return error(StatusCode::kDataLoss, "store: a node's id is not {} bytes", NodeId::kSize);
    nodes.push_back({*id, read.column_bytes(1), read.column_bytes(2)});
  }
}

Status Store::log_directive(const StoredDirective& directive) {
  MESH_RETURN_IF_ERROR(
      Statement(db_, "INSERT INTO directive(id, node, epoch, body, outcome, unix_ms) VALUES(?,?,?,?,?,?)")
          .text(directive.id)
          .blob(directive.node.view())
          .integer(static_cast<std::int64_t>(directive.epoch.value))
          .text(directive.body)
          .text(directive.outcome.substr(0, kMostOutcomeBytes))
          .integer(directive.unix_ms)
          .done());
  const std::int64_t line = sqlite3_last_insert_rowid(db_);
  if (line % kTrimEvery != 0) return absl::OkStatus();
  return Statement(db_, "DELETE FROM directive WHERE line <= ?").integer(line - kept_directives_).done();
}

StatusOr<std::vector<StoredDirective>> Store::directives(std::size_t limit) {
  Statement read(db_,
                 "SELECT id, node, epoch, body, outcome, unix_ms FROM directive ORDER BY line DESC LIMIT ?");
  read.integer(static_cast<std::int64_t>(limit));
  std::vector<StoredDirective> lines;
  while (true) {
    MESH_ASSIGN_OR_RETURN(const bool row, read.step());
    if (!row) return lines;
    const auto node = NodeId::from_bytes(read.column_bytes(1));
    if (!node)
      return error(StatusCode::kDataLoss, "store: a directive's node is not {} bytes", NodeId::kSize);
    lines.push_back({read.column_bytes(0),
                     *node,
                     {static_cast<std::uint64_t>(read.column_integer(2))},
                     read.column_bytes(3),
                     read.column_bytes(4),
                     read.column_integer(5)});
  }
}

}  // namespace mesh::tracker
