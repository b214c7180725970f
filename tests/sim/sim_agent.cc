#include "tests/sim/sim_agent.h"

#include <algorithm>

namespace mesh::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

SimAgent::SimAgent(Setup setup, Timeline& timeline, Network& network, Random& random,
                   std::function<void(const std::vector<LayerRange>&)> offer,
                   std::function<void(const std::string&)> violation)
    : setup_(std::move(setup)),
      timeline_(timeline),
      network_(network),
      random_(random),
      offer_(std::move(offer)),
      violation_(std::move(violation)) {}

void SimAgent::start() {
  AgentOptions options{setup_.self, setup_.node, stored_epoch_, random_.next()};
  options.self.stamp.start = ++starts_;
  core_ = std::make_unique<AgentCore>(std::move(options), timeline_.now());
  publish();
  drain();
}

void SimAgent::stop() {
  ++life_;
  core_.reset();
  shards_.clear();
  armed_.reset();
}

std::function<void()> SimAgent::guarded(std::function<void()> what) {
  return [this, life = life_, what = std::move(what)] {
    if (life != life_ || !core_) return;
    what();
    drain();
  };
}

void SimAgent::publish() {
  core_->set_shards(shards_);
  std::vector<LayerRange> ready;
  for (const wire::ShardStatus& shard : shards_) {
    if (const LayerRange layers = wire::layers_in_use(shard); !layers.empty()) ready.push_back(layers);
  }
  offer_(ready);
}

void SimAgent::send(const std::string& route, std::string body) {
  network_.post("http://" + setup_.self.address, setup_.tracker_url, route + "?" + setup_.node.hex(),
                std::move(body), seconds(2),
                [this, route, life = life_](const StatusOr<std::string>& answer) {
                  if (life != life_ || !core_) return;
                  take_reply(route, answer);
                  drain();
                });
}

void SimAgent::take_reply(const std::string& route, const StatusOr<std::string>& answer) {
  if (!answer.ok()) return core_->on_call_failed(timeline_.now(), {answer.status(), {}});
  if (const auto refused = wire::parse_control_error(*answer); refused.ok()) {
    return core_->on_call_failed(timeline_.now(),
                                 {error(StatusCode::kFailedPrecondition, "refused"), *refused});
  }
  if (route == wire::kJoinRoute) {
    const auto reply = wire::parse_join_reply(*answer);
    if (!reply.ok()) return core_->on_call_failed(timeline_.now(), {reply.status(), {}});
    core_->on_join_reply(timeline_.now(), *reply);
  } else {
    take_heartbeat_reply(*answer);
  }
}

void SimAgent::take_heartbeat_reply(const std::string& body) {
  const auto reply = wire::parse_heartbeat_reply(body);
  if (!reply.ok()) return core_->on_call_failed(timeline_.now(), {reply.status(), {}});
  std::vector<CheckedDirective> checked;
  Epoch seen = std::max(core_->highest_epoch(), reply->epoch);
  for (const wire::SignedDirective& one : reply->directives) {
    const auto directive = wire::parse_directive(one.body);
    if (!directive.ok()) continue;
    CheckedDirective next{*directive, absl::OkStatus()};
    const bool old = directive->epoch < seen;
    old_.try_emplace(directive->id, old);
    stale_ += old ? 1 : 0;
    if (setup_.faults.accept_old_epochs) next.directive.epoch = seen;
    seen = std::max(seen, directive->epoch);
    checked.push_back(std::move(next));
  }
  core_->on_heartbeat_reply(timeline_.now(), *reply, checked);
}

void SimAgent::carried_out(const wire::DirectiveId& id) {
  if (old_[id]) violation_("a directive of an old epoch was carried out");
}

void SimAgent::load(const BeginLoad& order) {
  carried_out(order.id);
  shards_.push_back({order.model.model, order.layers, wire::ShardState::kLoading, 0, 100});
  publish();
  // Some loads take many heartbeats: then the tracker hears of them layer by layer.
  const auto takes = milliseconds(random_.between(100, 1500)) * (random_.chance(0.5) ? 10 : 1);
  for (std::uint32_t layer = 1; layer < order.layers.size(); ++layer)
    timeline_.after(takes * layer / order.layers.size(),
                    guarded([this, order, layer] { note_ready(order, layer); }));
  timeline_.after(takes, guarded([this, order] {
                    // The loaded range grows or joins what it touches, as a node's shards do.
                    LayerRange range = order.layers;
                    std::erase_if(shards_, [&](const wire::ShardStatus& s) {
                      const bool touches = s.layers.begin <= range.end && range.begin <= s.layers.end;
                      if (touches) {
                        range.begin = std::min(range.begin, s.layers.begin);
                        range.end = std::max(range.end, s.layers.end);
                      }
                      return touches;
                    });
                    shards_.push_back({order.model.model, range, wire::ShardState::kReady, 100, 100});
                    publish();
                    core_->on_directive_ended(timeline_.now(), order.id, absl::OkStatus());
                  }));
}

/// The first `layers` layers of a load are there.
void SimAgent::note_ready(const BeginLoad& order, std::uint32_t layers) {
  for (wire::ShardStatus& shard : shards_) {
    if (shard.state != wire::ShardState::kLoading || shard.layers != order.layers) continue;
    shard.ready = {shard.layers.begin, shard.layers.begin + layers};
  }
  publish();
}

void SimAgent::drop(const BeginDrop& order) {
  carried_out(order.id);
  std::vector<wire::ShardStatus> kept;
  for (const wire::ShardStatus& s : shards_) {
    const auto keep = [&](LayerRange part) {
      if (!part.empty()) kept.push_back({s.model, part, s.state, s.bytes_done, s.bytes_total});
    };
    keep({s.layers.begin, std::min(s.layers.end, std::max(s.layers.begin, order.layers.begin))});
    keep({std::max(s.layers.begin, std::min(s.layers.end, order.layers.end)), s.layers.end});
  }
  shards_ = std::move(kept);
  publish();
  core_->on_directive_ended(timeline_.now(), order.id, absl::OkStatus());
}

void SimAgent::drain() {
  if (!core_) return;
  if (core_->next_wakeup() <= timeline_.now()) core_->on_time(timeline_.now());
  for (auto effects = core_->take_effects(); !effects.empty(); effects = core_->take_effects()) {
    for (AgentEffect& effect : effects) {
      if (auto* join = std::get_if<SendJoin>(&effect))
        send(std::string(wire::kJoinRoute), wire::to_json(join->join));
      if (auto* beat = std::get_if<SendHeartbeat>(&effect)) {
        send(std::string(wire::kHeartbeatRoute), wire::to_json(beat->heartbeat));
      }
      if (auto* store = std::get_if<StoreEpoch>(&effect)) stored_epoch_ = store->epoch;
      if (auto* order = std::get_if<BeginLoad>(&effect)) load(*order);
      if (auto* order = std::get_if<BeginDrop>(&effect)) drop(*order);
      if (auto* end = std::get_if<GiveUp>(&effect))
        violation_("an agent gave up: " + std::string(message_of(end->why)));
    }
  }
  const TimePoint wakeup = std::max(core_->next_wakeup(), timeline_.now() + milliseconds(1));
  if (armed_ && *armed_ <= wakeup && *armed_ > timeline_.now()) return;
  armed_ = wakeup;
  timeline_.at(wakeup, guarded([] {}));
}

}  // namespace mesh::sim
