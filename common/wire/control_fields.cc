#include "common/wire/control_fields.h"

namespace mesh::wire {
namespace {
constexpr std::array<std::string_view, 3> kShardStates{"loading", "ready", "draining"};
}

json::Object stamp_object(const Stamp& stamp) {
  return {{"start", stamp.start}, {"number", stamp.number}};
}

StatusOr<Stamp> read_stamp(const json::View& view, std::string_view key) {
  MESH_ASSIGN_OR_RETURN(const json::View field, view.field(key));
  Stamp stamp;
  MESH_ASSIGN_OR_RETURN(stamp.start, field.get<std::uint64_t>("start"));
  MESH_ASSIGN_OR_RETURN(stamp.number, field.get<std::uint64_t>("number"));
  return stamp;
}

json::Array layers_array(const LayerRange& layers) {
  return {layers.begin, layers.end};
}

StatusOr<LayerRange> read_layers(const json::View& view, std::string_view key) {
  MESH_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> pair, view.get_list<std::uint32_t>(key));
  if (pair.size() != 2 || pair[0] > pair[1]) {
    MESH_ASSIGN_OR_RETURN(const json::View field, view.field(key));
    return field.error("expected [begin, end] with begin ≤ end");
  }
  return LayerRange{pair[0], pair[1]};
}

json::Object shard_object(const ShardStatus& shard) {
  return {{"model", shard.model.hex()},
          {"layers", layers_array(shard.layers)},
          {"state", name_of(kShardStates, shard.state)},
          {"bytes_done", shard.bytes_done},
          {"bytes_total", shard.bytes_total}};
}

StatusOr<ShardStatus> read_shard(const json::View& view) {
  ShardStatus shard;
  MESH_ASSIGN_OR_RETURN(shard.model, view.get<ModelIdentity>("model"));
  MESH_ASSIGN_OR_RETURN(shard.layers, read_layers(view, "layers"));
  MESH_ASSIGN_OR_RETURN(shard.state, read_enum<ShardState>(view, "state", kShardStates));
  MESH_ASSIGN_OR_RETURN(shard.bytes_done, view.get<std::uint64_t>("bytes_done"));
  MESH_ASSIGN_OR_RETURN(shard.bytes_total, view.get<std::uint64_t>("bytes_total"));
  return shard;
}

}  // namespace mesh::wire
