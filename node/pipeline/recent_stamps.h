#pragma once

#include <deque>
#include <mutex>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/wire/control.h"

namespace mesh::pipeline {

/// How long an opening or a renewal is taken after the stamp that it names was sent. A session's tombstone
/// lasts longer, so that a recorded opening meets one or the other.
inline constexpr Duration kFreshFor = std::chrono::seconds(30);

/// The stamps of this program's joins and heartbeats of the last kFreshFor: what an opening or a renewal must
/// name to be taken (proto-docs/session.md, Freshness). Thread-safe: the agent writes, routes ask.
class RecentStamps {
 public:
  explicit RecentStamps(const NodeId& self) : self_(self) {}

  /// Before the message goes out.
  void sent(const wire::Stamp& stamp, TimePoint now);
  /// kFailedPrecondition unless it is for this node and names a stamp sent at most kFreshFor ago.
  Status check(const wire::Freshness& fresh, TimePoint now) const;

 private:
  const NodeId self_;
  mutable std::mutex mutex_;
  std::deque<std::pair<wire::Stamp, TimePoint>> sent_;  ///< oldest first
};

}  // namespace mesh::pipeline
