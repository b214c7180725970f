#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "common/identity/key_pair.h"
#include "common/net/server.h"
#include "node/node.h"

namespace mesh {

/// What the routes need beside the node.
struct RouteContext {
  /// Opens the sealed secrets of openings.
  std::shared_ptr<const KeyPair> identity;
  /// The tracker whose openings, closings and renewals count; none while no tracker is pinned.
  std::function<std::optional<NodeId>()> tracker;
  /// OK when an opening or renewal that names this is new and for this node (RecentStamps::check).
  std::function<Status(const wire::Freshness&)> check_fresh;
  FaultPoints* faults = nullptr;
  NodeObserver* observer = nullptr;  ///< told of frames; outlives the server
};

/// Frames, openings, closings, cursors, renewals and health (proto-docs/http.md). `node` must outlive the
/// server.
std::vector<net::Route> session_routes(Node& node, RouteContext context);

}  // namespace mesh
