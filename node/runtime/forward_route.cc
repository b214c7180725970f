#include "node/runtime/forward_route.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "common/json/view.h"
#include "common/net/error_response.h"
#include "common/net/url.h"
#include "node/runtime/base64.h"

namespace mesh {
namespace {

constexpr std::size_t kMaxBody = std::size_t{128} << 20;
constexpr std::size_t kMaxRows = 16384;
constexpr std::size_t kMaxMask = std::size_t{1} << 20;

/// "3,5,8" as numbers.
StatusOr<std::vector<std::uint32_t>> parse_numbers(std::string_view header, std::string_view text) {
  std::vector<std::uint32_t> numbers;
  while (!text.empty() && numbers.size() <= kMaxRows) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::uint32_t number = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + comma, number);
    if (code != std::errc() || end != text.data() + comma) {
      return error(StatusCode::kInvalidArgument, "{} takes numbers with commas between", header);
    }
    numbers.push_back(number);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return numbers;
}

/// One byte per (row, key) or per key, 1: visible. The shorter form is a padding mask and stays causal.
StatusOr<engine::AttentionMask> parse_mask(std::string_view text, std::uint32_t rows, Position start) {
  const auto bytes = from_base64(text);
  const std::uint64_t keys = std::uint64_t{start} + rows;
  if (!bytes || bytes->size() > kMaxMask || (bytes->size() != keys && bytes->size() != rows * keys)) {
    return error(StatusCode::kInvalidArgument,
                 "X-Meshnet-Attn-Mask takes base64 of {} bytes (one a key) or {} (one a row and key)", keys,
                 rows * keys);
  }
  const bool whole = bytes->size() == rows * keys && (rows != 1 || start != 0);
  engine::AttentionMask mask;
  mask.additive.reserve(rows * keys);
  for (std::uint64_t row = 0; row < rows; ++row) {
    for (std::uint64_t key = 0; key < keys; ++key) {
      const bool visible = (*bytes)[whole ? row * keys + key : key] != 0 && (whole || key <= start + row);
      mask.additive.push_back(visible ? 0.0f : -std::numeric_limits<float>::infinity());
    }
  }
  return mask;
}

StatusOr<wire::ShardStatus> choose_shard(const Node& node, const net::Request& request) {
  const std::string_view wanted = request.headers.get("X-Meshnet-Model");
  for (const wire::ShardStatus& shard : node.shards()) {
    if (shard.state == wire::ShardState::kReady && (wanted.empty() || shard.model.hex() == wanted))
      return shard;
  }
  return error(StatusCode::kNotFound, "no shard is ready here{}", wanted.empty() ? "" : " of that model");
}

class ForwardCall {
 public:
  ForwardCall(Node& node, const TokenizerOf& tokenizer_of, net::Request& request)
      : node_(node), tokenizer_of_(tokenizer_of), request_(request) {}

  StatusOr<net::Response> run() {
    MESH_ASSIGN_OR_RETURN(const wire::ShardStatus shard, choose_shard(node_, request_));
    MESH_ASSIGN_OR_RETURN(const engine::ModelProfile profile, node_.profile(shard.model));
    forward_.identity = shard.model;
    forward_.range = shard.layers;
    if (const auto layers = request_.headers.get("X-Meshnet-Layers"); !layers.empty()) {
      MESH_ASSIGN_OR_RETURN(const auto ends, parse_numbers("X-Meshnet-Layers", layers));
      if (ends.size() != 2) return error(StatusCode::kInvalidArgument, "X-Meshnet-Layers takes BEGIN,END");
      forward_.range = {ends[0], ends[1]};
    }
    MESH_RETURN_IF_ERROR(read_input(profile));
    MESH_RETURN_IF_ERROR(read_options());
    const bool tail = forward_.range.end == profile.layer_count();
    MESH_ASSIGN_OR_RETURN(ForwardReply reply, node_.forward(forward_));
    return answer(std::move(reply), profile, tail);
  }

 private:
  Status read_input(const engine::ModelProfile& profile) {
    const std::string_view type = request_.headers.get("Content-Type");
    if (type.starts_with("text/")) {
      MESH_ASSIGN_OR_RETURN(const auto tokenizer, tokenizer_of_(forward_.identity));
      MESH_ASSIGN_OR_RETURN(forward_.ids, tokenizer->encode(request_.body, AddSpecial::kYes));
    } else if (type.starts_with(net::kJsonType)) {
      MESH_ASSIGN_OR_RETURN(const json::Value body, json::parse(request_.body));
      MESH_ASSIGN_OR_RETURN(forward_.ids, json::View(body).get_list<TokenId>("ids"));
    } else {
      return read_hidden(profile);
    }
    if (forward_.ids.empty()) return error(StatusCode::kInvalidArgument, "the text gives no token");
    return check_rows(forward_.ids.size());
  }

  Status read_hidden(const engine::ModelProfile& profile) {
    const std::string_view text = request_.headers.get("X-Meshnet-Shape");
    MESH_ASSIGN_OR_RETURN(const auto shape, parse_numbers("X-Meshnet-Shape", text));
    if (shape.size() != 2 || shape[1] != profile.hidden) {
      return error(StatusCode::kInvalidArgument, "X-Meshnet-Shape takes ROWS,{} for this model",
                   profile.hidden);
    }
    MESH_RETURN_IF_ERROR(check_rows(shape[0]));
    forward_.hidden = std::move(request_.body);
    return absl::OkStatus();
  }

  Status check_rows(std::size_t rows) {
    if (rows == 0 || rows > kMaxRows) {
      return error(StatusCode::kInvalidArgument, "a forward takes 1 to {} rows, not {}", kMaxRows, rows);
    }
    forward_.rows = static_cast<std::uint32_t>(rows);
    return absl::OkStatus();
  }

  Status read_options() {
    const std::string_view positions = request_.headers.get("X-Meshnet-Positions");
    MESH_ASSIGN_OR_RETURN(forward_.positions, parse_numbers("X-Meshnet-Positions", positions));
    forward_.session = std::string(request_.headers.get("X-Meshnet-Session"));
    if (const auto mask = request_.headers.get("X-Meshnet-Attn-Mask"); !mask.empty()) {
      if (!forward_.session.empty()) {
        return error(StatusCode::kInvalidArgument,
                     "X-Meshnet-Attn-Mask goes with a forward without a session");
      }
      MESH_ASSIGN_OR_RETURN(forward_.mask, parse_mask(mask, forward_.rows, 0));
    }
    return absl::OkStatus();
  }

  StatusOr<net::Response> answer(ForwardReply reply, const engine::ModelProfile& profile, bool tail) {
    net::Response response = net::Response::binary(std::move(reply.hidden));
    response.headers.add("X-Meshnet-Shape", fmt::format("{},{}", forward_.rows, profile.hidden));
    response.headers.add("X-Meshnet-Layers", fmt::format("{},{}", forward_.range.begin, forward_.range.end));
    response.headers.add("X-Meshnet-Next-Position", fmt::format("{}", reply.next));
    if (!forward_.ids.empty()) {
      response.headers.add("X-Meshnet-Input-Ids", fmt::format("{}", fmt::join(forward_.ids, ",")));
    }
    if (tail) {
      response.headers.add("X-Meshnet-Token-Ids", fmt::format("{}", fmt::join(reply.ids, ",")));
      if (const auto tokenizer = tokenizer_of_(forward_.identity); tokenizer.ok() && !reply.ids.empty()) {
        const auto bytes = (*tokenizer)->token_bytes(reply.ids.back());
        if (bytes.ok()) response.headers.add("X-Meshnet-Text", net::percent_encode(*bytes));
      }
    }
    return response;
  }

  Node& node_;
  const TokenizerOf& tokenizer_of_;
  net::Request& request_;
  ForwardRequest forward_;
};

}  // namespace

net::Route forward_route(Node& node, TokenizerOf tokenizer_of) {
  const auto handle = [&node, tokenizer_of = std::move(tokenizer_of)](net::Request& request) {
    auto response = ForwardCall(node, tokenizer_of, request).run();
    return response.ok() ? *std::move(response) : net::error_response(response.status());
  };
  return {"POST", std::string(kForwardRoute), net::Access::kApiKey, handle, kMaxBody, true};
}

}  // namespace mesh
