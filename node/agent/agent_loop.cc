#include "node/agent/agent_loop.h"

#include <algorithm>
#include <utility>

#include "common/base/detached.h"
#include "node/agent/shard_loader.h"

namespace mesh {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kJoinTimeout = seconds(5);
constexpr Duration kHeartbeatTimeout = milliseconds(2500);
constexpr Duration kLeaveTimeout = seconds(2);
constexpr Duration kLongestSleep = seconds(1);

wire::NodeLoad load_of(const NodeFigures& figures) {
  const engine::MemoryUse& memory = figures.memory;
  wire::NodeLoad load;
  load.sessions = static_cast<std::uint32_t>(figures.hop.sessions);
  load.waiting_segments = static_cast<std::uint32_t>(figures.hop.segments_waiting);
  load.memory_free_bytes = memory.free_bytes();
  load.kv_blocks_used = static_cast<std::uint32_t>(memory.cache_blocks);
  load.kv_blocks_total = static_cast<std::uint32_t>(figures.cache_blocks_capacity);
  return load;
}

}  // namespace

AgentLoop::AgentLoop(AgentOptions options, Parts parts)
    : parts_(std::move(parts)), core_(std::move(options), clock_.now()), link_(parts_.tracker, parts_.pin) {
  call_thread_ = std::thread([this] { run_calls(); });
  order_thread_ = std::thread([this] { run_orders(); });
  core_thread_ = std::thread([this] { run_core(); });
}

AgentLoop::~AgentLoop() {
  stop_talking();
  order_thread_.join();
}

void AgentLoop::begin_drain() {
  events_.push([this](TimePoint now) { core_.begin_drain(now); });
}

void AgentLoop::leave() {
  link_.cancel();  // a heartbeat under way is worth nothing now
  events_.push([this](TimePoint now) { core_.leave(now); });
  stop_talking();
}

void AgentLoop::stop_talking() {
  cancelled_ = true;
  events_.close();
  orders_.close();
  if (core_thread_.joinable()) core_thread_.join();
  calls_.close();
  if (call_thread_.joinable()) call_thread_.join();
}

void AgentLoop::run_core() {
  while (true) {
    const bool ending = events_.closed();
    refresh_figures();
    const TimePoint now = clock_.now();
    core_.on_time(now);
    for (AgentEffect& effect : core_.take_effects()) apply(effect);
    refresh_admission(now);
    auto event = events_.pop_until(std::min(core_.next_wakeup(), clock_.now() + kLongestSleep));
    if (!event && ending) break;
    if (event) (*event)(clock_.now());
  }
  for (AgentEffect& effect : core_.take_effects()) apply(effect);
}

void AgentLoop::refresh_figures() {
  core_.set_shards(parts_.node.shards());
  const NodeFigures figures = parts_.node.figures();
  std::vector<wire::StageTime> stages;
  for (const ShardFigures& shard : figures.shards) {
    stages.push_back({shard.status.model, shard.status.layers, shard.decode_seconds, shard.prefill_seconds});
  }
  std::vector<wire::LinkFigure> links;
  for (const LinkCounters& link : figures.links) {
    const double ratio =
        link.raw_bytes == 0 ? 0 : static_cast<double>(link.wire_bytes) / static_cast<double>(link.raw_bytes);
    links.push_back({link.address, link.round_trip_seconds, link.bytes_per_second, ratio});
  }
  core_.set_figures(load_of(figures), std::move(stages), std::move(links));
}

void AgentLoop::refresh_admission(TimePoint now) {
  const bool admits = core_.accepts_new_work(now);
  if (admits_ == admits) return;
  admits_ = admits;
  parts_.node.set_draining(!admits);
}

void AgentLoop::apply(AgentEffect& effect) {
  if (auto* join = std::get_if<SendJoin>(&effect)) {
    parts_.stamps->sent(join->join.stamp, clock_.now());
    calls_.push(std::move(*join));
  } else if (auto* beat = std::get_if<SendHeartbeat>(&effect)) {
    parts_.stamps->sent(beat->heartbeat.stamp, clock_.now());
    calls_.push(std::move(*beat));
  } else if (auto* goodbye = std::get_if<SendLeave>(&effect)) {
    calls_.push(*goodbye);
  } else if (const auto* store = std::get_if<StoreEpoch>(&effect)) {
    if (const Status stored = parts_.state.store_epoch(store->epoch); !stored.ok()) {
      parts_.log.error("{}", message_of(stored));
    }
  } else if (auto* load = std::get_if<BeginLoad>(&effect)) {
    orders_.push(std::move(*load));
  } else if (auto* drop = std::get_if<BeginDrop>(&effect)) {
    orders_.push(*drop);
  } else if (const auto* say = std::get_if<Say>(&effect)) {
    const auto level = say->level == Say::Level::kInfo      ? log::Level::kInfo
                       : say->level == Say::Level::kWarning ? log::Level::kWarning
                                                            : log::Level::kError;
    if (parts_.log.enabled(level)) parts_.log.write(level, say->text);
  } else {
    parts_.on_give_up(std::get<GiveUp>(effect).why);
  }
}

void AgentLoop::run_calls() {
  while (auto call = calls_.pop()) {
    std::visit([this](const auto& one) { make_call(link_, one); }, *call);
  }
}

void AgentLoop::report_failure(const Status& status, const wire::ControlError& refusal) {
  events_.push([this, status = detached(status), refusal](TimePoint now) {
    core_.on_call_failed(now, {status, refusal});
  });
}

void AgentLoop::make_call(TrackerLink& link, const SendJoin& call) {
  wire::ControlError refusal;
  const auto body = link.call(wire::kJoinRoute, wire::to_json(call.join), kJoinTimeout, refusal);
  if (!body.ok()) return report_failure(body.status(), refusal);
  auto reply = wire::parse_join_reply(*body);
  if (!reply.ok()) return report_failure(reply.status(), {});
  events_.push([this, reply = *std::move(reply)](TimePoint now) { core_.on_join_reply(now, reply); });
}

void AgentLoop::make_call(TrackerLink& link, const SendHeartbeat& call) {
  wire::ControlError refusal;
  const auto body =
      link.call(wire::kHeartbeatRoute, wire::to_json(call.heartbeat), kHeartbeatTimeout, refusal);
  if (!body.ok()) return report_failure(body.status(), refusal);
  auto reply = wire::parse_heartbeat_reply(*body);
  if (!reply.ok()) return report_failure(reply.status(), {});
  auto checked = check_directives(reply->directives, *parts_.pin->key());
  events_.push([this, reply = *std::move(reply), checked = std::move(checked)](TimePoint now) {
    core_.on_heartbeat_reply(now, reply, checked);
  });
}

void AgentLoop::make_call(TrackerLink& link, const SendLeave& call) {
  wire::ControlError refusal;
  const auto body = link.call(wire::kLeaveRoute, wire::to_json(call.leave), kLeaveTimeout, refusal);
  if (!body.ok()) parts_.log.warning("the tracker did not hear the goodbye: {}", message_of(body.status()));
}

void AgentLoop::run_orders() {
  while (auto order = orders_.pop()) {
    const Status result = std::visit([this](const auto& one) { return carry_out(one); }, *order);
    const wire::DirectiveId id = std::visit([](const auto& one) { return one.id; }, *order);
    events_.push([this, id, result = detached(result)](TimePoint now) {
      core_.set_shards(parts_.node.shards());
      core_.on_directive_ended(now, id, result);
    });
  }
}

Status AgentLoop::carry_out(const BeginLoad& order) {
  MESH_ASSIGN_OR_RETURN(const auto checkpoint, parts_.models->open(order.model));
  MESH_ASSIGN_OR_RETURN(const auto quantization, engine::parse_quantization(order.model.quantization));
  return load_layers(parts_.node, checkpoint, order.model.model, order.layers, order.model.layer_count,
                     quantization, parts_.log, parts_.share, cancelled_);
}

Status AgentLoop::carry_out(const BeginDrop& order) {
  return parts_.node.drop_shard(order.model, order.layers);
}

}  // namespace mesh
