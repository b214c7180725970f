#include "tracker/runtime/route_book.h"

#include <algorithm>
#include <utility>

#include "common/base/kv_blocks.h"
#include "common/identity/random.h"
#include "tracker/route/route.h"

namespace mesh::tracker {
namespace {

/// Of one identity, at the nodes that hold it. A node that was never measured counts as an average one, so
/// that it gets sessions and is measured.
LoadView load_view(const ModelIdentity& identity,
                   const std::map<NodeId, std::shared_ptr<const NodeRecord>>& records) {
  LoadView view;
  double sum = 0;
  std::size_t measured = 0;
  for (const auto& [id, record] : records) {
    NodeSpeed& speed = view[id];
    speed.sessions = record->load.sessions;
    speed.seconds_per_layer = 0;
    for (const wire::StageTime& stage : record->stage_times) {
      if (stage.model != identity || stage.decode_seconds <= 0 || stage.layers.empty()) continue;
      speed.seconds_per_layer = stage.decode_seconds / stage.layers.size();
    }
    if (speed.seconds_per_layer > 0) {
      sum += speed.seconds_per_layer;
      ++measured;
    }
  }
  const double average = measured > 0 ? sum / static_cast<double>(measured) : NodeSpeed{}.seconds_per_layer;
  for (auto& [id, speed] : view) {
    if (speed.seconds_per_layer <= 0) speed.seconds_per_layer = average;
  }
  return view;
}

Status not_served(const ModelIdentity& identity) {
  return error(StatusCode::kNotFound, "model {} is not served", identity.hex());
}

}  // namespace

RouteBook::RouteBook(Options options) : options_(std::move(options)) {}

void RouteBook::publish(const Registry& registry, const NodeId& node) {
  if (const NodeRecord* const record = registry.find(node); record != nullptr) {
    auto copy = std::make_shared<const NodeRecord>(*record);
    const std::lock_guard lock(mutex_);
    records_.insert_or_assign(node, std::move(copy));
  }
  publish(registry);
}

void RouteBook::publish(const Registry& registry) {
  if (version_ == registry.version()) return;
  version_ = registry.version();
  std::map<NodeId, Record> records;
  for (const auto& [id, record] : registry.nodes()) {
    const auto known = records_.find(id);  // only this thread changes the map
    const bool current = known != records_.end() && known->second->presence == record.presence &&
                         known->second->facts.stamp == record.facts.stamp;
    records.emplace_hint(records.end(), id,
                         current ? known->second : std::make_shared<const NodeRecord>(record));
  }
  std::map<ModelIdentity, std::shared_ptr<const Model>> models;
  for (const wire::CatalogueEntry& entry : options_.catalogue)
    models.emplace(entry.model, std::make_shared<const Model>(model_in(registry, entry)));
  const std::lock_guard lock(mutex_);
  records_.swap(records);
  models_.swap(models);
}

RouteBook::Model RouteBook::model_in(const Registry& registry, const wire::CatalogueEntry& entry) const {
  Coverage coverage = registry.coverage(entry.model, entry.layer_count);
  Model model{coverage.ready(), absl::OkStatus()};
  if (const std::uint32_t own = head_layers_of(entry.model); own > 0)
    coverage.add_ready({options_.self, {0, own}});
  std::string text;
  for (const LayerRange& gap : coverage.gaps()) text += (text.empty() ? "" : ", ") + to_string(gap);
  if (!text.empty()) {
    model.missing =
        error(StatusCode::kUnavailable,
              "layers {} of {} are not loaded anywhere yet: wait, or start more nodes", text, entry.name);
  }
  return model;
}

const ModelProfile* RouteBook::profile_of(const ModelIdentity& identity) const {
  const auto found = std::ranges::find(options_.profiles, identity, &ModelProfile::identity);
  return found == options_.profiles.end() ? nullptr : &*found;
}

std::uint32_t RouteBook::head_layers_of(const ModelIdentity& identity) const {
  const auto own = options_.head_layers.find(identity);
  return own == options_.head_layers.end() ? 0 : own->second;
}

RouteBook::Record RouteBook::record_of(const NodeId& node) const {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(node);
  return found == records_.end() ? nullptr : found->second;
}

std::shared_ptr<const RouteBook::Model> RouteBook::model_of(const ModelIdentity& identity) const {
  const std::lock_guard lock(mutex_);
  const auto found = models_.find(identity);
  return found == models_.end() ? nullptr : found->second;
}

RouteBook::Ready RouteBook::ready_of(const ModelIdentity& identity) const {
  Ready ready;
  const std::lock_guard lock(mutex_);
  const auto model = models_.find(identity);
  if (model == models_.end()) return ready;
  ready.copies = model->second->ready;
  for (const Copy& copy : ready.copies) {
    const auto found = records_.find(copy.node);
    if (found != records_.end()) ready.records.emplace(copy.node, found->second);
  }
  return ready;
}

Status RouteBook::available(const ModelIdentity& identity) {
  const auto model = model_of(identity);
  return model == nullptr ? not_served(identity) : model->missing;
}

Status RouteBook::ready() const {
  for (const wire::CatalogueEntry& entry : options_.catalogue) {
    const auto model = model_of(entry.model);
    MESH_RETURN_IF_ERROR(model == nullptr ? not_served(entry.model) : model->missing);
  }
  return absl::OkStatus();
}

StatusOr<std::vector<wire::HopAddress>> RouteBook::find(const head::RouteWanted& wanted) {
  std::vector<wire::HopAddress> hops;
  RouteRequest request;
  request.layers = wanted.range;
  if (wanted.first) {
    const std::uint32_t end = head_layers_of(wanted.identity);
    hops.push_back({options_.self, options_.head_url, {0, end}});
    request.layers.begin = end;
  }
  request.excluded.insert(wanted.excluded.begin(), wanted.excluded.end());
  if (const ModelProfile* const profile = profile_of(wanted.identity); profile != nullptr)
    request.borders.insert(profile->split_points.begin(), profile->split_points.end());
  request.seed = random_u64();
  const Ready ready = ready_of(wanted.identity);
  MESH_ASSIGN_OR_RETURN(const std::vector<RouteHop> route,
                        pick_route(ready.copies, load_view(wanted.identity, ready.records), request));
  for (const RouteHop& hop : route)
    hops.push_back({hop.node, "http://" + ready.records.at(hop.node)->facts.address, hop.layers});
  return hops;
}

std::optional<PublicKey> RouteBook::key_of(const NodeId& node) {
  const Record record = record_of(node);
  return record == nullptr ? std::nullopt : PublicKey::from_bytes(record->public_key);
}

wire::Freshness RouteBook::freshness_of(const NodeId& node) {
  const Record record = record_of(node);
  return {node, record == nullptr ? wire::Stamp{} : record->facts.stamp};
}

Status RouteBook::joined(const NodeId& node) const {
  const Record record = record_of(node);
  if (record != nullptr && record->presence == NodePresence::kAlive) return absl::OkStatus();
  return error(StatusCode::kPermissionDenied, "node {} has not joined", node.hex());
}

/// What a node could use for caches if no session were there, as of its last heartbeat. Blocks are counted at
/// the width of the widest layer held, so narrower ones make this too much, never too little.
std::uint64_t RouteBook::cache_room(const NodeRecord& record) const {
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

std::optional<NoFit> RouteBook::find_room(const ModelIdentity& identity, std::uint64_t tokens,
                                          std::uint64_t own_bytes) {
  const ModelProfile* const profile = profile_of(identity);
  if (profile == nullptr) return std::nullopt;
  std::vector<CopyRoom> copies;
  const std::uint32_t behind = head_layers_of(identity);
  if (behind > 0) copies.push_back({{options_.self, {0, behind}}, own_bytes});
  const Ready ready = ready_of(identity);
  for (const Copy& copy : ready.copies) {
    const LayerRange layers{std::max(copy.layers.begin, behind), copy.layers.end};
    if (layers.empty()) continue;
    copies.push_back({{copy.node, layers}, cache_room(*ready.records.at(copy.node))});
  }
  return tracker::find_room({profile->layer_bytes_per_token, profile->split_points}, copies, tokens);
}

}  // namespace mesh::tracker
