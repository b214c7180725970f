#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "tracker/registry/coverage.h"

namespace mesh::tracker {

/// One hop of a session: `layers` may be narrower than what the node holds.
struct RouteHop {
  NodeId node;
  LayerRange layers;

  friend auto operator<=>(const RouteHop&, const RouteHop&) = default;
};

/// What is known of a node's speed at one identity; a node without an entry counts as the defaults.
struct NodeSpeed {
  double seconds_per_layer = 0.002;  ///< one decode step
  double link_seconds = 0.002;       ///< to reach it, per step
  std::uint32_t sessions = 0;        ///< running or opening there
};
using LoadView = std::map<NodeId, NodeSpeed>;

struct RouteRequest {
  LayerRange layers;                ///< to cover exactly: [k, N) behind the head, or a lost range
  std::set<NodeId> excluded;        ///< failed, draining or already in the session's route
  std::set<std::uint32_t> borders;  ///< allowed split points; empty: all
  std::uint64_t seed = 0;           ///< picks among the near-best
  double near_best = 1.1;           ///< routes up to this factor of the best cost are equal
};

/// Cheapest chain of ready copies that covers the asked layers exactly, random among the near-best: the sum
/// of (seconds per layer · layers · (1 + sessions) + link) over its hops. A node appears at most once. An
/// empty range gives an empty route. kUnavailable names the first layers without a ready copy.
StatusOr<std::vector<RouteHop>> pick_route(const std::vector<Copy>& ready, const LoadView& load,
                                           const RouteRequest& request);

}  // namespace mesh::tracker
