#include "tracker/plan/desk.h"

#include <algorithm>

namespace mesh::tracker {
namespace {

StepKind step_kind(wire::DirectiveKind kind) {
  return kind == wire::DirectiveKind::kLoadShard ? StepKind::kLoad : StepKind::kDrop;
}

bool same(const Step& step, const wire::Directive& directive) {
  return step.kind == step_kind(directive.kind) && step.node == directive.node &&
         step.model == directive.model && step.layers == directive.layers;
}

PlanNode plan_node_of(const NodeRecord& record) {
  PlanNode node;
  node.id = record.id;
  node.memory_bytes = record.facts.memory_bytes;
  node.model_types = record.facts.model_types;
  node.quantizations = record.facts.quantizations;
  node.compute_types = record.facts.compute_types;
  node.leaving = record.draining;
  node.silent = record.presence == NodePresence::kLost;
  for (const wire::ShardStatus& shard : record.facts.shards) {
    // What a remembered node holds fills its place in the plan, but nobody's last copy is dropped for it.
    const bool ready = shard.state == wire::ShardState::kReady && record.presence == NodePresence::kAlive;
    node.holdings.push_back({shard.model, shard.layers, ready});
  }
  return node;
}

/// Bounds of what a node's own figure may weigh, against an average one.
constexpr double kSlowest = 0.25, kFastest = 4;
constexpr double kFastestRead = 1e14;  // bytes a second; more is nonsense

/// Speeds relative to the mean of those that measured themselves; others count as average.
void set_speeds(const std::vector<double>& read_rates, std::vector<PlanNode>& nodes) {
  double sum = 0;
  std::size_t measured = 0;
  for (const double rate : read_rates) {
    if (rate <= 0) continue;
    sum += rate;
    ++measured;
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (read_rates[i] <= 0) continue;
    nodes[i].speed = std::clamp(read_rates[i] * static_cast<double>(measured) / sum, kSlowest, kFastest);
  }
}

}  // namespace

DirectiveDesk::DirectiveDesk(std::vector<ModelProfile> models, HeadLayers head, Options options,
                             std::uint64_t seed)
    : models_(std::move(models)), head_(std::move(head)), options_(options), random_(seed) {}

void DirectiveDesk::joined(const NodeId& node, std::uint64_t start) {
  const auto known = starts_.find(node);
  if (known != starts_.end() && known->second == start) return;
  starts_[node] = start;
  ++changes_;
  for (const Outstanding& item : outstanding_[node]) events_.push_back({item.directive, "withdrawn"});
  outstanding_.erase(node);
  std::erase_if(failures_, [&](const auto& entry) { return entry.first.first == node; });
}

void DirectiveDesk::acknowledged(const NodeId& node, const std::vector<wire::DirectiveStatus>& statuses,
                                 TimePoint now) {
  const auto list = outstanding_.find(node);
  if (list == outstanding_.end()) return;
  for (const wire::DirectiveStatus& status : statuses) {
    const auto item = std::find_if(list->second.begin(), list->second.end(),
                                   [&](const Outstanding& each) { return each.directive.id == status.id; });
    if (item == list->second.end()) continue;
    if (!item->acknowledged || wire::is_final(status.state)) ++changes_;
    item->acknowledged = true;
    if (!wire::is_final(status.state)) continue;
    if (status.state == wire::DirectiveState::kDone) {
      events_.push_back({item->directive, "done"});
      failures_.erase({node, item->directive.model});
    } else {
      const bool failed = status.state == wire::DirectiveState::kFailed;
      events_.push_back(
          {item->directive, fmt::format("{}: {}", failed ? "failed" : "refused", status.message)});
      note_failure(node, item->directive, status.message, now);
    }
    list->second.erase(item);
  }
}

void DirectiveDesk::note_failure(const NodeId& node, const wire::Directive& directive,
                                 const std::string& reason, TimePoint now) {
  if (directive.kind != wire::DirectiveKind::kLoadShard) return;
  Failure& failure = failures_[{node, directive.model}];
  Duration wait = options_.refusal_first;
  for (std::uint32_t i = 0; i < failure.count && wait < options_.refusal_last; ++i) wait *= 2;
  ++failure.count;
  failure.until = now + std::min(wait, options_.refusal_last);
  failure.active = true;
  failure.reason = reason;
}

void DirectiveDesk::end_failures(TimePoint now) {
  for (auto& [key, failure] : failures_) {
    if (!failure.active || now < failure.until) continue;
    failure.active = false;
    ++changes_;
  }
}

std::vector<PlanNode> DirectiveDesk::view(const Registry& registry) const {
  std::vector<PlanNode> nodes;
  std::vector<double> read_rates;
  for (const auto& [id, record] : registry.nodes()) {
    PlanNode node = plan_node_of(record);
    for (const auto& [key, failure] : failures_) {
      if (key.first == id && failure.active) node.refuses.insert(key.second);
    }
    nodes.push_back(std::move(node));
    read_rates.push_back(std::min(record.facts.read_bytes_per_second, kFastestRead));
  }
  set_speeds(read_rates, nodes);
  return nodes;
}

bool DirectiveDesk::consider(const Registry& registry, TimePoint now) {
  if (registry.suspects_itself()) return false;
  end_failures(now);
  const Inputs inputs{registry.version(), changes_};
  if (considered_ == inputs) return false;
  considered_ = inputs;
  std::vector<PlanNode> nodes = view(registry);
  if (planned_ && nodes == planned_for_) return false;
  planned_for_ = nodes;
  // What was ordered stays where it is: it may be half loaded before the node's next heartbeat says so.
  for (PlanNode& each : nodes) add_outstanding(each);
  proposed_ = make_plan(models_, head_, nodes, plan_.epoch, options_.plan);
  const bool first = !planned_;
  planned_ = true;
  if (!first && proposed_.target == plan_.target) {
    plan_.steps = proposed_.steps;
    plan_.gaps = proposed_.gaps;
    plan_.notes = proposed_.notes;
    return false;
  }
  return true;
}

void DirectiveDesk::adopt(Epoch epoch) {
  plan_ = std::move(proposed_);
  plan_.epoch = epoch;
  ++changes_;
  // A node that has seen the new epoch refuses the old: what it has not acknowledged is ordered again if
  // still needed.
  for (auto& [node, list] : outstanding_) {
    for (const Outstanding& item : list) {
      if (!item.acknowledged) events_.push_back({item.directive, "withdrawn"});
    }
    std::erase_if(list, [](const Outstanding& item) { return !item.acknowledged; });
  }
}

void DirectiveDesk::add_outstanding(PlanNode& node) const {
  const auto list = outstanding_.find(node.id);
  if (list == outstanding_.end()) return;
  for (const Outstanding& item : list->second) {
    const wire::Directive& directive = item.directive;
    const auto holding = std::find_if(node.holdings.begin(), node.holdings.end(), [&](const Holding& each) {
      return each.model == directive.model && each.layers == directive.layers;
    });
    if (directive.kind == wire::DirectiveKind::kDropShard) {
      if (holding != node.holdings.end()) holding->ready = false;
    } else if (holding == node.holdings.end()) {
      node.holdings.push_back({directive.model, directive.layers, false});
    }
  }
}

bool DirectiveDesk::is_outstanding(const Step& step) const {
  const auto list = outstanding_.find(step.node);
  return list != outstanding_.end() &&
         std::any_of(list->second.begin(), list->second.end(),
                     [&](const Outstanding& item) { return same(step, item.directive); });
}

const std::vector<Step>& DirectiveDesk::steps_for(const Registry& registry, const NodeId& node,
                                                  TimePoint now) {
  end_failures(now);
  const Inputs inputs{registry.version(), changes_};
  if (stepped_ != inputs) {
    stepped_ = inputs;
    steps_.clear();
    std::vector<PlanNode> nodes = view(registry);
    for (PlanNode& each : nodes) add_outstanding(each);
    for (const Step& step : steps_now(models_, head_, nodes, plan_.target, options_.plan)) {
      steps_[step.node].push_back(step);
    }
  }
  return steps_[node];
}

std::vector<wire::Directive> DirectiveDesk::due(const Registry& registry, const NodeId& node, TimePoint now) {
  if (planned_ && !registry.suspects_itself()) {
    const std::vector<Step> steps = steps_for(registry, node, now);
    for (const Step& step : steps) {
      if (is_outstanding(step)) continue;
      ++changes_;
      wire::Directive directive;
      directive.id = next_id();
      directive.node = node;
      directive.epoch = plan_.epoch;
      directive.kind =
          step.kind == StepKind::kLoad ? wire::DirectiveKind::kLoadShard : wire::DirectiveKind::kDropShard;
      directive.model = step.model;
      directive.layers = step.layers;
      const auto model = std::find_if(models_.begin(), models_.end(),
                                      [&](const ModelProfile& each) { return each.identity == step.model; });
      if (model != models_.end()) directive.quantization = model->quantization;
      directive.expires_in_ms = static_cast<std::uint32_t>(
          std::chrono::duration_cast<std::chrono::milliseconds>(options_.expires).count());
      outstanding_[node].push_back({directive, false});
      events_.push_back({directive, "issued"});
    }
  }
  std::vector<wire::Directive> due;
  for (const Outstanding& item : outstanding_[node]) {
    if (!item.acknowledged) due.push_back(item.directive);
  }
  return due;
}

std::map<ModelIdentity, std::string> DirectiveDesk::failures(const NodeId& node) const {
  std::map<ModelIdentity, std::string> reasons;
  for (const auto& [key, failure] : failures_) {
    if (key.first == node) reasons[key.second] = failure.reason;
  }
  return reasons;
}

std::vector<DirectiveEvent> DirectiveDesk::take_events() {
  return std::exchange(events_, {});
}

wire::DirectiveId DirectiveDesk::next_id() {
  wire::DirectiveId id;
  for (std::size_t half = 0; half < 2; ++half) {
    // splitmix64 (Steele, Lea, Flood 2014). Ids need to be new, not secret: directives are signed.
    std::uint64_t z = (random_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    for (std::size_t i = 0; i < 8; ++i) id.bytes[8 * half + i] = static_cast<std::uint8_t>(z >> (8 * i));
  }
  return id;
}

}  // namespace mesh::tracker
