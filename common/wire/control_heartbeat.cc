#include "common/json/view.h"
#include "common/wire/control.h"
#include "common/wire/control_fields.h"

namespace mesh::wire {

using json::Object;
using json::View;

namespace {

constexpr json::Limits kHeartbeatLimits{.max_bytes = std::size_t{4} << 20, .max_depth = 8};
constexpr std::array<std::string_view, 5> kDirectiveStates{"accepted", "working", "done", "failed",
                                                           "refused"};

Object status_object(const DirectiveStatus& status) {
  return {{"id", status.id.hex()},
          {"state", name_of(kDirectiveStates, status.state)},
          {"message", json::as_utf8(status.message)}};
}

StatusOr<DirectiveStatus> read_status(const View& view) {
  DirectiveStatus status;
  MESH_ASSIGN_OR_RETURN(status.id, view.get<DirectiveId>("id"));
  MESH_ASSIGN_OR_RETURN(status.state, read_enum<DirectiveState>(view, "state", kDirectiveStates));
  MESH_ASSIGN_OR_RETURN(status.message, view.get<std::string>("message"));
  return status;
}

Object stage_object(const StageTime& stage) {
  return {{"model", stage.model.hex()},
          {"layers", layers_array(stage.layers)},
          {"decode_seconds", stage.decode_seconds},
          {"prefill_seconds", stage.prefill_seconds}};
}

StatusOr<double> read_measure(const View& view, std::string_view key) {
  MESH_ASSIGN_OR_RETURN(const View field, view.field(key));
  MESH_ASSIGN_OR_RETURN(const double value, field.as<double>());
  if (!(value >= 0)) return field.error("expected a number that is not negative");
  return value;
}

StatusOr<StageTime> read_stage(const View& view) {
  StageTime stage;
  MESH_ASSIGN_OR_RETURN(stage.model, view.get<ModelIdentity>("model"));
  MESH_ASSIGN_OR_RETURN(stage.layers, read_layers(view, "layers"));
  MESH_ASSIGN_OR_RETURN(stage.decode_seconds, read_measure(view, "decode_seconds"));
  MESH_ASSIGN_OR_RETURN(stage.prefill_seconds, read_measure(view, "prefill_seconds"));
  return stage;
}

Object link_object(const LinkFigure& link) {
  return {{"address", link.address},
          {"round_trip_seconds", link.round_trip_seconds},
          {"bytes_per_second", link.bytes_per_second},
          {"compression_ratio", link.compression_ratio}};
}

StatusOr<LinkFigure> read_link(const View& view) {
  LinkFigure link;
  MESH_ASSIGN_OR_RETURN(link.address, view.get<std::string>("address"));
  MESH_ASSIGN_OR_RETURN(link.round_trip_seconds, read_measure(view, "round_trip_seconds"));
  MESH_ASSIGN_OR_RETURN(link.bytes_per_second, read_measure(view, "bytes_per_second"));
  MESH_ASSIGN_OR_RETURN(link.compression_ratio, read_measure(view, "compression_ratio"));
  return link;
}

Object load_object(const NodeLoad& load) {
  return {{"sessions", load.sessions},
          {"waiting_segments", load.waiting_segments},
          {"kv_blocks_used", load.kv_blocks_used},
          {"kv_blocks_total", load.kv_blocks_total},
          {"memory_free_bytes", load.memory_free_bytes}};
}

StatusOr<NodeLoad> read_load(const View& view) {
  NodeLoad load;
  MESH_ASSIGN_OR_RETURN(load.sessions, view.get<std::uint32_t>("sessions"));
  MESH_ASSIGN_OR_RETURN(load.waiting_segments, view.get<std::uint32_t>("waiting_segments"));
  MESH_ASSIGN_OR_RETURN(load.kv_blocks_used, view.get<std::uint32_t>("kv_blocks_used"));
  MESH_ASSIGN_OR_RETURN(load.kv_blocks_total, view.get<std::uint32_t>("kv_blocks_total"));
  MESH_ASSIGN_OR_RETURN(load.memory_free_bytes, view.get<std::uint64_t>("memory_free_bytes"));
  return load;
}

}  // namespace

std::string to_json(const Heartbeat& beat) {
  Object out{{"stamp", stamp_object(beat.stamp)},
             {"lease", beat.lease},
             {"last_reply", beat.last_reply},
             {"highest_epoch", beat.highest_epoch.value},
             {"draining", beat.draining},
             {"shards", list_of(beat.shards, shard_object)},
             {"directives", list_of(beat.directives, status_object)},
             {"load", load_object(beat.load)},
             {"stage_times", list_of(beat.stage_times, stage_object)},
             {"links", list_of(beat.links, link_object)}};
  return json::serialize(out);
}

StatusOr<Heartbeat> parse_heartbeat(std::string_view text) {
  MESH_ASSIGN_OR_RETURN(const json::Value document, json::parse(text, kHeartbeatLimits));
  const View view(document);
  Heartbeat beat;
  MESH_ASSIGN_OR_RETURN(beat.stamp, read_stamp(view, "stamp"));
  MESH_ASSIGN_OR_RETURN(beat.lease, view.get<std::uint64_t>("lease"));
  MESH_ASSIGN_OR_RETURN(beat.last_reply, view.get<std::uint64_t>("last_reply"));
  MESH_ASSIGN_OR_RETURN(beat.highest_epoch, view.get<Epoch>("highest_epoch"));
  MESH_ASSIGN_OR_RETURN(beat.draining, view.get_or<bool>("draining", false));
  MESH_ASSIGN_OR_RETURN(beat.shards, read_list(view, "shards", read_shard));
  MESH_ASSIGN_OR_RETURN(beat.directives, read_list(view, "directives", read_status));
  MESH_ASSIGN_OR_RETURN(const View load, view.field("load"));
  MESH_ASSIGN_OR_RETURN(beat.load, read_load(load));
  MESH_ASSIGN_OR_RETURN(beat.stage_times, read_list(view, "stage_times", read_stage));
  MESH_ASSIGN_OR_RETURN(beat.links, read_list(view, "links", read_link));
  return beat;
}

}  // namespace mesh::wire
