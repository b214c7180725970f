#include "tracker/gateway/endpoints.h"

namespace mesh::gateway {

std::vector<net::Route> openai_routes(Backend& backend, EndpointOptions options) {
  std::vector<net::Route> routes = models_routes(backend);
  routes.push_back(chat_completions_route(backend, options));
  routes.push_back(completions_route(backend, options));
  return routes;
}

}  // namespace mesh::gateway
