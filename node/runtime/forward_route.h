#pragma once

#include <functional>
#include <memory>

#include "common/net/server.h"
#include "common/text/tokenizer.h"
#include "node/node.h"

namespace mesh {

inline constexpr std::string_view kForwardRoute = "/mesh/v1/forward";

/// Gives the tokenizer of a model whose shard is held.
using TokenizerOf = std::function<StatusOr<std::shared_ptr<const Tokenizer>>(const ModelIdentity&)>;

/// POST /mesh/v1/forward, for tests and debugging: text, ids or bf16 in, bf16 out (proto-docs/forward.md).
net::Route forward_route(Node& node, TokenizerOf tokenizer_of);

}  // namespace mesh
