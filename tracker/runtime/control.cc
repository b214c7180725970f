#include "common/base/version.h"
#include "common/identity/signed_message.h"
#include "common/json/error_fields.h"
#include "common/net/address.h"
#include "common/net/error_response.h"
#include "common/net/url.h"
#include "node/versions.h"
#include "tracker/runtime/membership.h"

// Join, heartbeat and leave of Membership (proto-docs/directives.md).
namespace mesh::tracker {
namespace {

constexpr std::size_t kMaxControlBody = std::size_t{1} << 20;
constexpr int kUpgradeRequired = 426;

Status refuse(StatusCode code, std::string_view name, const std::string& message) {
  return json::with_code(error(code, "{}", message), name);
}

/// The registry's refusals under their names on the wire.
Status named(const Status& status) {
  switch (status.code()) {
    case StatusCode::kNotFound:
      return json::with_code(status, "unknown_node");
    case StatusCode::kAborted:
      return json::with_code(status, "wrong_lease");
    case StatusCode::kFailedPrecondition:
      return json::with_code(status, "replay");
    case StatusCode::kInvalidArgument:
      return json::with_code(status, "bad_message");
    default:
      return status;
  }
}

/// The highest wire version that both speak, or 426.
StatusOr<std::uint32_t> common_version(const wire::Join& join) {
  std::uint32_t best = 0;
  for (const std::uint32_t version : wire_versions()) {
    for (const std::uint32_t other : join.wire_versions) {
      if (version == other) best = std::max(best, version);
    }
  }
  if (best != 0) return best;
  return net::with_http_status(
      refuse(StatusCode::kFailedPrecondition, "upgrade",
             fmt::format("this tracker speaks wire versions {}, the node (version {}) none of them",
                         wire_versions_text(), join.program_version)),
      kUpgradeRequired);
}

Status check_facts(const wire::Join& join, const std::string& remote_ip) {
  const auto address = net::HostPort::parse(join.address);
  if (!address.ok()) {
    return refuse(StatusCode::kInvalidArgument, "bad_message",
                  fmt::format("address '{}' is not HOST:PORT", join.address));
  }
  if (!net::is_loopback(remote_ip) && net::is_loopback(address->host)) {
    return refuse(
        StatusCode::kInvalidArgument, "bad_message",
        fmt::format("the node calls from {} and says that it is reached at {}, which is every machine's own "
                    "address: start it with --listen 0.0.0.0:PORT --advertise ADDRESS:PORT",
                    remote_ip, join.address));
  }
  return absl::OkStatus();
}

NodeId signer_of(const net::Request& request) {
  return NodeId::parse(request.principal).value_or(NodeId{});
}

}  // namespace

StatusOr<std::string> Membership::join(const net::Request& request) {
  if (options_.needs_proof(request.remote_ip) || !request.headers.get(kJoinHeader).empty()) {
    const auto proof = Mac::parse(request.headers.get(kJoinHeader));
    if (!options_.join_key || !proof || !options_.join_key->verify_proof(request.body, *proof)) {
      return net::with_http_status(
          refuse(
              StatusCode::kPermissionDenied, "join_key",
              "the join key is missing or is not this tracker's: start the node with --join-key and the text "
              "in the tracker's --join-key-file"),
          403);
    }
  }
  auto message = wire::parse_join(request.body);
  if (!message.ok()) return named(message.status());
  MESH_ASSIGN_OR_RETURN(const std::uint32_t version, common_version(*message));
  MESH_RETURN_IF_ERROR(check_facts(*message, request.remote_ip));
  const auto key = PublicKey::parse(request.headers.get(kKeyHeader));
  if (!key) return refuse(StatusCode::kUnauthenticated, "signature", "the key header is not a key");
  const NodeId node = signer_of(request);

  std::unique_lock lock(mutex_);
  const NodeRecord* const before = registry_.find(node);
  const bool started_anew = before != nullptr && before->presence == NodePresence::kAlive &&
                            before->facts.stamp.start != message->stamp.start;
  const auto granted = registry_.join(node, std::string(key->view()), *message, clock_.now());
  if (!granted.ok()) return named(granted.status());
  book_.publish(registry_, node);
  desk_.joined(node, message->stamp.start);
  log_.info("node {} joined from {}: {}, {} MB, {} shards", node.hex().substr(0, 16), message->address,
            message->device, message->memory_bytes / 1'000'000, message->shards.size());
  stored_.erase(node);
  remember(node);
  reconsider();

  wire::JoinReply reply;
  reply.answers = message->stamp;
  reply.node = node;
  reply.lease = granted->lease;
  reply.reply = granted->reply;
  reply.wire_version = version;
  reply.program_version = std::string(program_version());
  reply.heartbeat_ms = static_cast<std::uint32_t>(options_.heartbeat / std::chrono::milliseconds(1));
  reply.lease_ms = static_cast<std::uint32_t>(options_.registry.lease / std::chrono::milliseconds(1));
  reply.epoch = desk_.plan().epoch;
  reply.catalogue = options_.catalogue;
  lock.unlock();
  // Its sessions ended with its last run, within the lease and so unnoticed.
  if (started_anew && options_.on_lost) options_.on_lost(node);
  return wire::to_json(reply);
}

wire::SignedDirective Membership::sign(const wire::Directive& directive) const {
  wire::SignedDirective out;
  out.body = wire::to_json(directive);
  out.signature =
      std::string(identity_->sign(std::string(wire::kDirectiveSignaturePrefix) + out.body).view());
  return out;
}

StatusOr<std::string> Membership::heartbeat(const net::Request& request) {
  const auto message = wire::parse_heartbeat(request.body);
  if (!message.ok()) return named(message.status());
  const NodeId node = signer_of(request);

  const std::lock_guard lock(mutex_);
  const auto beat = registry_.heartbeat(node, *message, clock_.now());
  if (!beat.ok()) return named(beat.status());
  book_.publish(registry_, node);
  desk_.acknowledged(node, message->directives, clock_.now());
  remember(node);
  reconsider();

  wire::HeartbeatReply reply;
  reply.answers = message->stamp;
  reply.lease = message->lease;
  reply.reply = beat->reply;
  reply.epoch = desk_.plan().epoch;
  for (const wire::Directive& directive : desk_.due(registry_, node, clock_.now())) {
    reply.directives.push_back(sign(directive));
  }
  log_events();
  return wire::to_json(reply);
}

StatusOr<std::string> Membership::leave(const net::Request& request) {
  const auto message = wire::parse_leave(request.body);
  if (!message.ok()) return named(message.status());
  const NodeId node = signer_of(request);
  {
    const std::lock_guard lock(mutex_);
    if (const Status left = registry_.leave(node, *message, clock_.now()); !left.ok()) return named(left);
    book_.publish(registry_);
    if (const Status erased = store_->erase_node(node); !erased.ok()) {
      log_.error("node {} cannot be erased: {}", node.hex().substr(0, 16), message_of(erased));
    }
    stored_.erase(node);
    log_.info("node {} left", node.hex().substr(0, 16));
    reconsider();
  }
  if (options_.on_lost) options_.on_lost(node);
  return std::string("{}");
}

net::Response Membership::answer(std::string_view route, const StatusOr<std::string>& body) const {
  net::Response response;
  if (body.ok()) {
    response.body = *body;
  } else {
    wire::ControlError refusal;
    refusal.code = json::code_of(body.status()).value_or("busy");
    refusal.message = std::string(message_of(body.status()));
    if (refusal.code == "upgrade") refusal.install = std::string(program_version());
    response.status = net::http_status_of(body.status());
    response.body = wire::to_json(refusal);
  }
  const MessageSignature signature = sign_message(*identity_, route, response.body);
  response.headers.add(kKeyHeader, signature.key_hex);
  response.headers.add(kSignatureHeader, signature.signature_hex);
  return response;
}

std::vector<net::Route> Membership::routes() {
  const auto post = [this](std::string_view path,
                           StatusOr<std::string> (Membership::*handle)(const net::Request&)) {
    return net::Route{
        "POST",
        std::string(path),
        net::Access::kNode,
        [this, path, handle](net::Request& request) { return answer(path, (this->*handle)(request)); },
        kMaxControlBody,
        false};
  };
  return {post(wire::kJoinRoute, &Membership::join), post(wire::kHeartbeatRoute, &Membership::heartbeat),
          post(wire::kLeaveRoute, &Membership::leave)};
}

}  // namespace mesh::tracker
