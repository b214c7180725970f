#pragma once

#include <functional>
#include <vector>

#include "common/json/json.h"
#include "common/net/server.h"

namespace mesh::tracker {

/// What these routes show; each may be called from many threads.
struct AdminViews {
  /// OK when every wanted model has a full chain and the tracker is not draining.
  std::function<Status()> ready;
  std::function<json::Value()> coverage;
  std::function<std::string()> metrics;
};

/// GET /health (alive) and /ready: for every listener.
std::vector<net::Route> health_routes(const AdminViews& views);
/// GET /mesh/v1/coverage.
net::Route coverage_route(const AdminViews& views);
/// GET /metrics.
net::Route metrics_route(const AdminViews& views);
/// GET /: a page that says what this is, shows models and coverage, and has a chat box.
net::Route page_route();

}  // namespace mesh::tracker
