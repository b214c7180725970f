#include "tracker/runtime/membership.h"

// The body of /mesh/v1/coverage (docs/contracts.md).
namespace mesh::tracker {
namespace {

std::string_view state_name(wire::ShardState state) {
  switch (state) {
    case wire::ShardState::kLoading:
      return "loading";
    case wire::ShardState::kReady:
      return "ready";
    case wire::ShardState::kDraining:
      return "draining";
  }
  return "unknown";
}

json::Object shard_object(const wire::ShardStatus& shard) {
  json::Object object{{"model", shard.model.hex()},     {"begin", shard.layers.begin},
                      {"end", shard.layers.end},        {"state", state_name(shard.state)},
                      {"bytes_done", shard.bytes_done}, {"bytes_total", shard.bytes_total}};
  const LayerRange ready = layers_in_use(shard);
  if (shard.state == wire::ShardState::kLoading && !ready.empty()) object["ready_end"] = ready.end;
  return object;
}

std::string_view state_name(const NodeRecord& record) {
  if (record.presence != NodePresence::kAlive) return "silent";
  return record.draining ? "draining" : "ready";
}

}  // namespace

json::Value Membership::coverage() const {
  const std::lock_guard lock(mutex_);
  json::Array models;
  json::Array head_shards;
  for (const wire::CatalogueEntry& entry : options_.catalogue) {
    const Coverage coverage = coverage_of(entry.model);
    const auto ready = coverage.ready_counts();
    const auto loading = coverage.loading_counts();
    json::Array layers;
    for (std::uint32_t layer = 0; layer < entry.layer_count; ++layer) {
      layers.push_back(json::Object{{"ready", ready[layer]}, {"loading", loading[layer]}});
    }
    models.push_back(json::Object{{"name", boost::json::string(entry.name)},
                                  {"identity", entry.model.hex()},
                                  {"model_type", boost::json::string(entry.model_type)},
                                  {"quantization", boost::json::string(entry.quantization)},
                                  {"compute_type", boost::json::string(entry.compute_type)},
                                  {"layer_count", entry.layer_count},
                                  {"layers", std::move(layers)}});
    const auto own = options_.head_layers.find(entry.model);
    const std::uint32_t end = own == options_.head_layers.end() ? 0 : own->second;
    head_shards.push_back(shard_object({entry.model, {0, end}, wire::ShardState::kReady, 0, 0}));
  }
  json::Array nodes;
  nodes.push_back(json::Object{{"id", options_.self.hex()},
                               {"address", "head"},
                               {"state", "ready"},
                               {"memory_bytes", options_.head_memory_bytes},
                               {"seconds_since_heartbeat", 0},
                               {"shards", std::move(head_shards)}});
  for (const auto& [id, record] : registry_.nodes()) {
    json::Array shards;
    for (const wire::ShardStatus& shard : record.facts.shards) shards.push_back(shard_object(shard));
    json::Array failures;
    for (const auto& [model, reason] : desk_.failures(id)) {
      failures.push_back(json::Object{{"model", model.hex()}, {"reason", boost::json::string(reason)}});
    }
    json::Object node{{"id", id.hex()},
                      {"address", boost::json::string(record.facts.address)},
                      {"state", state_name(record)},
                      {"device", boost::json::string(record.facts.device)},
                      {"version", boost::json::string(record.facts.program_version)},
                      {"memory_bytes", record.facts.memory_bytes},
                      {"sessions", record.load.sessions},
                      {"shards", std::move(shards)},
                      {"failures", std::move(failures)}};
    const bool heard = record.last_heartbeat != TimePoint{};
    node["seconds_since_heartbeat"] =
        heard ? json::Value(std::chrono::duration<double>(clock_.now() - record.last_heartbeat).count())
              : json::Value(nullptr);
    nodes.push_back(std::move(node));
  }
  json::Array gaps;
  for (const Gap& gap : desk_.plan().gaps) {
    gaps.push_back(json::Object{{"model", gap.model.hex()},
                                {"begin", gap.layers.begin},
                                {"end", gap.layers.end},
                                {"reason", boost::json::string(gap.reason)}});
  }
  return json::Object{{"epoch", desk_.plan().epoch.value},
                      {"suspects_itself", registry_.suspects_itself()},
                      {"models", std::move(models)},
                      {"nodes", std::move(nodes)},
                      {"gaps", std::move(gaps)}};
}

}  // namespace mesh::tracker
