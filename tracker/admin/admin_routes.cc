#include "tracker/admin/admin_routes.h"

#include "common/base/version.h"
#include "common/metrics/metrics.h"
#include "common/net/error_response.h"

namespace mesh::tracker {

std::vector<net::Route> health_routes(const AdminViews& views) {
  const auto health = [](net::Request&) {
    return net::Response::json(json::Object{{"status", "ok"}, {"version", program_version()}});
  };
  const auto ready = [views](net::Request&) {
    const Status status = views.ready();
    return status.ok() ? net::Response::json(json::Object{{"status", "ready"}}) : net::error_response(status);
  };
  return {{"GET", "/health", net::Access::kAnyone, health, 0, false},
          {"GET", "/ready", net::Access::kAnyone, ready, 0, false}};
}

net::Route coverage_route(const AdminViews& views) {
  return {"GET",
          "/mesh/v1/coverage",
          net::Access::kAdmin,
          [views](net::Request&) { return net::Response::json(views.coverage()); },
          0,
          false};
}

net::Route metrics_route(const AdminViews& views) {
  return {"GET",
          "/metrics",
          net::Access::kAdmin,
          [views](net::Request&) {
            return net::Response::text(views.metrics(), metrics::Registry::kContentType);
          },
          0,
          false};
}

}  // namespace mesh::tracker
