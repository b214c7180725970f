#include "node/pipeline/recent_stamps.h"

#include <algorithm>

namespace mesh::pipeline {

void RecentStamps::sent(const wire::Stamp& stamp, TimePoint now) {
  const std::lock_guard lock(mutex_);
  while (!sent_.empty() && now - sent_.front().second > kFreshFor) sent_.pop_front();
  sent_.emplace_back(stamp, now);
}

Status RecentStamps::check(const wire::Freshness& fresh, TimePoint now) const {
  if (fresh.node != self_) {
    return error(StatusCode::kFailedPrecondition, "the message is for node {}, this is {}", fresh.node.hex(),
                 self_.hex());
  }
  const std::lock_guard lock(mutex_);
  const bool known = std::ranges::any_of(
      sent_, [&](const auto& one) { return one.first == fresh.stamp && now - one.second <= kFreshFor; });
  if (known) return absl::OkStatus();
  return error(
      StatusCode::kFailedPrecondition,
      "the message is not fresh: this node sent no heartbeat {}/{} in the last {} s; it may be a replay",
      fresh.stamp.start, fresh.stamp.number, kFreshFor / std::chrono::seconds(1));
}

}  // namespace mesh::pipeline
