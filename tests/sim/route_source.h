#pragma once

#include <optional>
#include <vector>

#include "tracker/head/head_table.h"

namespace mesh::sim {

/// Who may run a range.
class RouteSource {
 public:
  virtual ~RouteSource() = default;
  /// Hops for exactly wanted.range, or nothing for now. The first hop of a first route is the embedded node.
  virtual std::optional<std::vector<wire::HopAddress>> route(const head::RouteWanted& wanted) = 0;
};

}  // namespace mesh::sim
