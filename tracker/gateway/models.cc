#include "common/net/error_response.h"
#include "tracker/gateway/endpoints.h"
#include "tracker/gateway/request_fields.h"

// GET /v1/models, GET /v1/models/{model}
namespace mesh::gateway {
namespace {

json::Object entry(const Model& model) {
  return {{"id", boost::json::string(model.name)},
          {"object", "model"},
          {"created", model.created_unix},
          {"owned_by", "meshnet"},
          {"context_length", model.context}};
}

}  // namespace

std::vector<net::Route> models_routes(Backend& backend) {
  const auto list = [&backend](net::Request&) {
    json::Array data;
    for (const Model& model : backend.models()) data.push_back(entry(model));
    return net::Response::json(json::Object{{"object", "list"}, {"data", std::move(data)}});
  };
  const auto one = [&backend](net::Request& request) {
    const auto model = find_model(backend, request.params["model"]);
    if (!model.ok()) return net::error_response(model.status());
    return net::Response::json(entry(**model));
  };
  return {{"GET", "/v1/models", net::Access::kApiKey, list, 0, false},
          {"GET", "/v1/models/{model...}", net::Access::kApiKey, one, 0, false}};
}

}  // namespace mesh::gateway
