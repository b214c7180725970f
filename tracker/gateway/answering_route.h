#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/json/view.h"
#include "common/net/server.h"
#include "tracker/gateway/backend.h"
#include "tracker/gateway/respond.h"

namespace mesh::gateway {

/// What tells the endpoints that answer with generated text apart.
struct AnsweringEndpoint {
  std::string path;
  std::size_t most_values = 0;  ///< of the body's JSON
  Status (*check_fields)(const json::View& body) = nullptr;
  /// Where a request says how many tokens it wants; the first that is there counts.
  std::vector<std::string_view> length_fields;
  std::uint32_t fallback_tokens = 0;  ///< when it does not say
  std::string_view prompt_field;
  /// At least one id.
  StatusOr<std::vector<TokenId>> (*read_prompt)(const Model& model, const json::View& body) = nullptr;
  std::shared_ptr<const Shape> (*shape)(const std::string& model, std::int64_t unix_seconds) = nullptr;
};

/// POST `endpoint.path`: reads the request, asks the backend, responds. `backend` must outlive the server.
net::Route answering_route(Backend& backend, AnsweringEndpoint endpoint, RespondOptions options);

}  // namespace mesh::gateway
