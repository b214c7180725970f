#include "tests/sim/sim_tracker.h"

#include <algorithm>

namespace mesh::sim {
namespace {

constexpr std::uint32_t kHeartbeatMs = 2000;
constexpr std::uint32_t kLeaseMs = 6000;

std::string refusal(const Status& status) {
  std::string code = "busy";
  if (status.code() == StatusCode::kNotFound) code = "unknown_node";
  if (status.code() == StatusCode::kAborted) code = "wrong_lease";
  if (status.code() == StatusCode::kFailedPrecondition) code = "replay";
  return wire::to_json(wire::ControlError{code, std::string(message_of(status)), ""});
}

}  // namespace

SimTracker::SimTracker(Setup setup, Timeline& timeline, Network& network, Random& random,
                       std::function<void(const NodeId&)> on_lost)
    : setup_(std::move(setup)),
      timeline_(timeline),
      random_(random),
      on_lost_(std::move(on_lost)),
      desk_({setup_.model}, {{setup_.model.identity, setup_.head_layers}}, {}, random.next()) {
  network.listen(setup_.url,
                 [this](const std::string& route, const std::string& body) { return handle(route, body); });
  watch();
}

void SimTracker::watch() {
  for (const NodeId& node : registry_.expire(timeline_.now())) on_lost_(node);
  plan();
  timeline_.after(std::chrono::milliseconds(200), [this] { watch(); });
}

void SimTracker::plan() {
  if (!desk_.consider(registry_, timeline_.now())) return;
  epoch_ = std::max(epoch_, registry_.highest_epoch()).next();
  desk_.adopt(epoch_);
}

std::vector<wire::CatalogueEntry> SimTracker::catalogue() const {
  const tracker::ModelProfile& m = setup_.model;
  return {{m.identity, m.name, m.model_type, m.quantization, m.compute_type, m.layers(), m.hidden_size}};
}

StatusOr<std::string> SimTracker::handle(const std::string& route, const std::string& body) {
  const std::size_t mark = route.find('?');
  const auto node = NodeId::parse(route.substr(mark + 1)).value_or(NodeId{});
  const std::string path = route.substr(0, mark);
  if (path == wire::kJoinRoute) {
    MESH_ASSIGN_OR_RETURN(const wire::Join message, wire::parse_join(body));
    return join(node, message);
  }
  MESH_ASSIGN_OR_RETURN(const wire::Heartbeat message, wire::parse_heartbeat(body));
  return heartbeat(node, message);
}

std::string SimTracker::join(const NodeId& node, const wire::Join& message) {
  const auto granted = registry_.join(node, std::string(32, 'k'), message, timeline_.now());
  if (!granted.ok()) return refusal(granted.status());
  desk_.joined(node, message.stamp.start);
  plan();
  wire::JoinReply reply;
  reply.answers = message.stamp;
  reply.node = node;
  reply.lease = granted->lease;
  reply.reply = granted->reply;
  reply.wire_version = 1;
  reply.program_version = "0.1.0";
  reply.heartbeat_ms = kHeartbeatMs;
  reply.lease_ms = kLeaseMs;
  reply.epoch = epoch_;
  reply.catalogue = catalogue();
  return wire::to_json(reply);
}

std::string SimTracker::heartbeat(const NodeId& node, const wire::Heartbeat& message) {
  const auto beat = registry_.heartbeat(node, message, timeline_.now());
  if (!beat.ok()) return refusal(beat.status());
  desk_.acknowledged(node, message.directives, timeline_.now());
  plan();
  wire::HeartbeatReply reply;
  reply.answers = message.stamp;
  reply.lease = message.lease;
  reply.reply = beat->reply;
  reply.epoch = epoch_;
  for (const wire::Directive& directive : desk_.due(registry_, node, timeline_.now())) {
    issued_.push_back(directive);
    reply.directives.push_back({wire::to_json(directive), std::string(64, 's')});
  }
  if (!issued_.empty() && random_.chance(setup_.stale_directives)) {
    // As a tracker would that was started from an old backup beside this one.
    wire::Directive old = issued_[random_.between(0, issued_.size() - 1)];
    if (old.epoch < epoch_) {
      old.kind = wire::DirectiveKind::kDropShard;
      old.node = node;
      for (std::uint8_t& byte : old.id.bytes) byte = static_cast<std::uint8_t>(random_.next());
      reply.directives.push_back({wire::to_json(old), std::string(64, 's')});
    }
  }
  return wire::to_json(reply);
}

tracker::Coverage SimTracker::coverage() const {
  tracker::Coverage coverage = registry_.coverage(setup_.model.identity, setup_.model.layers());
  if (setup_.head_layers > 0) coverage.add_ready({setup_.embedded.node, {0, setup_.head_layers}});
  return coverage;
}

bool SimTracker::complete() const {
  return coverage().complete();
}

std::optional<std::vector<wire::HopAddress>> SimTracker::route(const head::RouteWanted& wanted) {
  std::vector<wire::HopAddress> hops;
  tracker::RouteRequest request;
  request.layers = wanted.range;
  if (wanted.first) {
    hops.push_back(setup_.embedded);
    request.layers.begin = setup_.head_layers;
  }
  request.excluded.insert(wanted.excluded.begin(), wanted.excluded.end());
  request.excluded.insert(setup_.embedded.node);
  request.seed = random_.next();
  const auto chosen = tracker::pick_route(coverage().ready(), {}, request);
  if (!chosen.ok()) return std::nullopt;
  for (const tracker::RouteHop& hop : *chosen) {
    const wire::Join& facts = registry_.find(hop.node)->facts;
    early_hops_ += std::ranges::none_of(facts.shards, [&](const wire::ShardStatus& shard) {
      return shard.state == wire::ShardState::kReady && shard.layers.contains(hop.layers);
    });
    hops.push_back({hop.node, "http://" + facts.address, hop.layers});
  }
  return hops;
}

}  // namespace mesh::sim
