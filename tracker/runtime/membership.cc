#include "tracker/runtime/membership.h"

#include "common/base/kv_blocks.h"

#include <algorithm>

#include "common/base/version.h"
#include "common/identity/random.h"
#include "common/identity/signed_message.h"
#include "common/net/url.h"

namespace mesh::tracker {
namespace {

constexpr auto kLongPlan = std::chrono::milliseconds(10);
constexpr auto kWatch = std::chrono::milliseconds(200);

/// Ranges and states; progress is not worth a write to disk.
std::vector<wire::ShardStatus> without_progress(std::vector<wire::ShardStatus> shards) {
  for (wire::ShardStatus& shard : shards) shard.bytes_done = shard.bytes_total = 0;
  return shards;
}

}  // namespace

Membership::Membership(Options options, Store store, std::shared_ptr<const KeyPair> identity, log::Logger log)
    : options_(std::move(options)),
      identity_(std::move(identity)),
      log_(std::move(log)),
      store_(std::move(store)),
      registry_(options_.registry),
      desk_(options_.profiles, options_.head_layers, options_.desk, random_u64()) {}

Status Membership::start() {
  {
    const std::lock_guard lock(mutex_);
    MESH_ASSIGN_OR_RETURN(const std::vector<StoredNode> nodes, store_.nodes());
    for (const StoredNode& node : nodes) {
      auto facts = wire::parse_join(node.join_json);
      if (!facts.ok()) {
        log_.warning("forgot node {}: {}", node.id.hex().substr(0, 16), message_of(facts.status()));
        continue;
      }
      stored_[node.id] = without_progress(facts->shards);
      registry_.restore(node.id, node.public_key, *std::move(facts), clock_.now());
    }
    if (!nodes.empty()) log_.info("{} nodes are remembered and awaited for one lease", nodes.size());
    reconsider();
  }
  thread_ = std::thread([this] { watch(); });
  return absl::OkStatus();
}

void Membership::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Membership::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    stopping_.wait_for(lock, kWatch, [&] { return stop_; });
    if (stop_) return;
    const bool suspected = registry_.suspects_itself();
    const std::vector<NodeId> lost = registry_.expire(clock_.now());
    for (const NodeId& node : lost)
      log_.warning("node {} fell silent; its lease ended", node.hex().substr(0, 16));
    if (!suspected && registry_.suspects_itself()) {
      log_.error(
          "more than a third of the nodes fell silent at once: this tracker suspects its own network and "
          "orders "
          "nothing new until half of them are back");
    }
    reconsider();
    if (lost.empty() || !options_.on_lost) continue;
    lock.unlock();
    for (const NodeId& node : lost) options_.on_lost(node);
    lock.lock();
  }
}

void Membership::reconsider() {
  const TimePoint began = clock_.now();
  if (began < next_plan_) return;
  const bool changed = desk_.consider(registry_, began);
  const Duration took = clock_.now() - began;
  if (took > kLongPlan) next_plan_ = clock_.now() + 10 * took;
  if (!changed) return;
  const auto epoch = store_.next_epoch(registry_.highest_epoch());
  if (!epoch.ok()) {
    // Without a stored epoch nothing may be ordered; the next change tries again.
    log_.error("cannot store the next epoch, so nothing is ordered: {}", message_of(epoch.status()));
    return;
  }
  desk_.adopt(*epoch);
  const Plan& plan = desk_.plan();
  log_.info("plan of epoch {}: {} assignments, {} steps, {} gaps", plan.epoch.value, plan.target.size(),
            plan.steps.size(), plan.gaps.size());
  std::set<std::string> notes(plan.notes.begin(), plan.notes.end());
  for (const Gap& gap : plan.gaps) {
    const auto* entry = entry_of(gap.model);
    notes.insert(fmt::format("layers {} of {} have no node: {}", to_string(gap.layers),
                             entry == nullptr ? gap.model.hex() : entry->name, gap.reason));
  }
  for (const std::string& note : notes) {
    if (!noted_.contains(note)) log_.warning("{}", note);
  }
  noted_ = std::move(notes);
  log_events();
}

void Membership::log_events() {
  for (const DirectiveEvent& event : desk_.take_events()) {
    const wire::Directive& directive = event.directive;
    const bool load = directive.kind == wire::DirectiveKind::kLoadShard;
    log_.info("{} layers {} at node {}: {}", load ? "LOAD_SHARD" : "DROP_SHARD", to_string(directive.layers),
              directive.node.hex().substr(0, 16), event.outcome);
    StoredDirective line;
    line.id = directive.id.hex();
    line.node = directive.node;
    line.epoch = directive.epoch;
    line.body = wire::to_json(directive);
    line.outcome = event.outcome;
    line.unix_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
    if (const Status stored = store_.log_directive(line); !stored.ok()) {
      log_.error("the directive log cannot be written: {}", message_of(stored));
    }
  }
}

void Membership::remember(const NodeId& node) {
  const NodeRecord* record = registry_.find(node);
  if (record == nullptr) return;
  auto shards = without_progress(record->facts.shards);
  const auto known = stored_.find(node);
  if (known != stored_.end() && known->second == shards) return;
  if (const Status stored = store_.put_node({node, record->public_key, wire::to_json(record->facts)});
      !stored.ok()) {
    log_.error("node {} cannot be stored: {}", node.hex().substr(0, 16), message_of(stored));
    return;
  }
  stored_[node] = std::move(shards);
}

const wire::CatalogueEntry* Membership::entry_of(const ModelIdentity& identity) const {
  for (const wire::CatalogueEntry& entry : options_.catalogue) {
    if (entry.model == identity) return &entry;
  }
  return nullptr;
}

Coverage Membership::coverage_of(const ModelIdentity& identity) const {
  const wire::CatalogueEntry* entry = entry_of(identity);
  Coverage coverage = registry_.coverage(identity, entry == nullptr ? 0 : entry->layer_count);
  const auto own = options_.head_layers.find(identity);
  if (own != options_.head_layers.end() && own->second > 0)
    coverage.add_ready({options_.self, {0, own->second}});
  return coverage;
}

Status Membership::missing(const ModelIdentity& identity) const {
  const wire::CatalogueEntry* entry = entry_of(identity);
  if (entry == nullptr) return error(StatusCode::kNotFound, "model {} is not served", identity.hex());
  const auto gaps = coverage_of(identity).gaps();
  if (gaps.empty()) return absl::OkStatus();
  std::string text;
  for (const LayerRange& gap : gaps) text += (text.empty() ? "" : ", ") + to_string(gap);
  return error(StatusCode::kUnavailable,
               "layers {} of {} are not loaded anywhere yet: wait, or start more nodes", text, entry->name);
}

Status Membership::available(const ModelIdentity& identity) {
  const std::lock_guard lock(mutex_);
  return missing(identity);
}

Status Membership::ready() const {
  const std::lock_guard lock(mutex_);
  for (const wire::CatalogueEntry& entry : options_.catalogue) MESH_RETURN_IF_ERROR(missing(entry.model));
  return absl::OkStatus();
}

LoadView Membership::load_view(const ModelIdentity& identity) const {
  LoadView view;
  double sum = 0;
  std::size_t measured = 0;
  for (const auto& [id, record] : registry_.nodes()) {
    NodeSpeed& speed = view[id];
    speed.sessions = record.load.sessions;
    speed.seconds_per_layer = 0;
    for (const wire::StageTime& stage : record.stage_times) {
      if (stage.model != identity || stage.decode_seconds <= 0 || stage.layers.empty()) continue;
      speed.seconds_per_layer = stage.decode_seconds / stage.layers.size();
    }
    if (speed.seconds_per_layer > 0) {
      sum += speed.seconds_per_layer;
      ++measured;
    }
  }
  // A node that was never measured counts as an average one, so that it gets sessions and is measured.
  const double average = measured > 0 ? sum / static_cast<double>(measured) : NodeSpeed{}.seconds_per_layer;
  for (auto& [id, speed] : view) {
    if (speed.seconds_per_layer <= 0) speed.seconds_per_layer = average;
  }
  return view;
}

const ModelProfile* Membership::profile_of(const ModelIdentity& identity) const {
  for (const ModelProfile& profile : options_.profiles) {
    if (profile.identity == identity) return &profile;
  }
  return nullptr;
}

// Blocks are counted at the width of the widest layer held, so narrower ones make this too much, never too
// little.
std::uint64_t Membership::cache_room(const NodeRecord& record) const {
  std::uint64_t widest = 0;
  for (const wire::ShardStatus& shard : record.facts.shards) {
    const ModelProfile* const profile = profile_of(shard.model);
    if (profile == nullptr || profile->layer_bytes_per_token.empty()) continue;
    widest = std::max(widest, *std::ranges::max_element(profile->layer_bytes_per_token));
  }
  const std::uint64_t block = widest * kKvBlockTokens;
  if (record.load.kv_blocks_total == 0 || block == 0) return kUnknownRoom;
  return record.load.kv_blocks_total * block + record.load.memory_free_bytes % block;
}

std::optional<NoFit> Membership::find_room(const ModelIdentity& identity, std::uint64_t tokens,
                                           std::uint64_t own_bytes) {
  const std::lock_guard lock(mutex_);
  const ModelProfile* const profile = profile_of(identity);
  if (profile == nullptr) return std::nullopt;
  std::vector<CopyRoom> copies;
  const auto own = options_.head_layers.find(identity);
  const std::uint32_t behind = own == options_.head_layers.end() ? 0 : own->second;
  if (behind > 0) copies.push_back({{options_.self, {0, behind}}, own_bytes});
  const Coverage coverage = registry_.coverage(identity, profile->layers());
  for (const Copy& copy : coverage.ready()) {
    const NodeRecord* const record = registry_.find(copy.node);
    const LayerRange layers{std::max(copy.layers.begin, behind), copy.layers.end};
    if (record == nullptr || layers.empty()) continue;
    copies.push_back({{copy.node, layers}, cache_room(*record)});
  }
  return tracker::find_room({profile->layer_bytes_per_token, profile->split_points}, copies, tokens);
}

StatusOr<std::vector<wire::HopAddress>> Membership::find(const head::RouteWanted& wanted) {
  const std::lock_guard lock(mutex_);
  std::vector<wire::HopAddress> hops;
  RouteRequest request;
  request.layers = wanted.range;
  if (wanted.first) {
    const auto own = options_.head_layers.find(wanted.identity);
    const std::uint32_t end = own == options_.head_layers.end() ? 0 : own->second;
    hops.push_back({options_.self, options_.head_url, {0, end}});
    request.layers.begin = end;
  }
  request.excluded.insert(wanted.excluded.begin(), wanted.excluded.end());
  for (const ModelProfile& profile : options_.profiles) {
    if (profile.identity == wanted.identity) {
      request.borders.insert(profile.split_points.begin(), profile.split_points.end());
    }
  }
  request.seed = random_u64();
  const wire::CatalogueEntry* entry = entry_of(wanted.identity);
  const Coverage coverage = registry_.coverage(wanted.identity, entry == nullptr ? 0 : entry->layer_count);
  MESH_ASSIGN_OR_RETURN(const std::vector<RouteHop> route,
                        pick_route(coverage.ready(), load_view(wanted.identity), request));
  for (const RouteHop& hop : route) {
    const NodeRecord* record = registry_.find(hop.node);
    if (record == nullptr) return error(StatusCode::kUnavailable, "node {} left", hop.node.hex());
    hops.push_back({hop.node, "http://" + record->facts.address, hop.layers});
  }
  return hops;
}

std::optional<PublicKey> Membership::key_of(const NodeId& node) {
  const std::lock_guard lock(mutex_);
  const NodeRecord* record = registry_.find(node);
  return record == nullptr ? std::nullopt : PublicKey::from_bytes(record->public_key);
}

wire::Freshness Membership::freshness_of(const NodeId& node) {
  const std::lock_guard lock(mutex_);
  const NodeRecord* record = registry_.find(node);
  return {node, record == nullptr ? wire::Stamp{} : record->facts.stamp};
}

Status Membership::joined(const NodeId& node) const {
  const std::lock_guard lock(mutex_);
  const NodeRecord* record = registry_.find(node);
  if (record != nullptr && record->presence == NodePresence::kAlive) return absl::OkStatus();
  return error(StatusCode::kPermissionDenied, "node {} has not joined", node.hex());
}

void Membership::trust_again() {
  const std::lock_guard lock(mutex_);
  registry_.trust_again();
  reconsider();
}

Membership::Figures Membership::figures() const {
  const std::lock_guard lock(mutex_);
  Figures figures;
  figures.epoch = desk_.plan().epoch;
  for (const auto& [id, record] : registry_.nodes()) {
    const bool alive = record.presence == NodePresence::kAlive;
    ++(!alive ? figures.silent : record.draining ? figures.draining : figures.alive);
  }
  return figures;
}

}  // namespace mesh::tracker
