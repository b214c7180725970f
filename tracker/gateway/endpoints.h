#pragma once

#include <cstdint>
#include <vector>

#include "common/net/server.h"
#include "tracker/gateway/backend.h"
#include "tracker/gateway/respond.h"

namespace mesh::gateway {

struct EndpointOptions {
  RespondOptions respond;
  std::uint32_t chat_tokens =
      2048;  ///< of an answer when the request does not say; fewer if the context is short
  std::uint32_t completion_tokens = 16;  ///< likewise (OpenAI's default)
};

/// Every endpoint of the OpenAI API that this server has; one file each. `backend` must outlive the server.
std::vector<net::Route> openai_routes(Backend& backend, EndpointOptions options);

// The files' own parts of that list.
std::vector<net::Route> models_routes(Backend& backend);
net::Route chat_completions_route(Backend& backend, EndpointOptions options);
net::Route completions_route(Backend& backend, EndpointOptions options);

}  // namespace mesh::gateway
