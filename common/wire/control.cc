#include "common/wire/control.h"

#include <utility>

#include "common/wire/control_json.h"

namespace mesh::wire {
namespace {

constexpr json::Limits kControlLimits{.max_bytes = std::size_t{4} << 20, .max_depth = 8};

template <class Message>
StatusOr<Message> parse(std::string_view text) {
  MESH_ASSIGN_OR_RETURN(const json::Value document, json::parse(text, kControlLimits));
  Message message;
  MESH_RETURN_IF_ERROR(read_message(json::View(document), message));
  return message;
}

/// What one node may say of itself; the tracker compares shards with each other.
constexpr std::size_t kMostShards = 256, kMostEntries = 1024, kMostTextBytes = 4096;

Status too_many(std::string_view name, std::size_t count, std::size_t most) {
  return error(StatusCode::kInvalidArgument, "{}: {} entries or bytes, {} are allowed", name, count, most);
}
template <class List>
Status at_most(std::string_view name, const List& list, std::size_t most) {
  return list.size() <= most ? absl::OkStatus() : too_many(name, list.size(), most);
}

Status check_sizes(const Join& join) {
  MESH_RETURN_IF_ERROR(at_most("shards", join.shards, kMostShards));
  MESH_RETURN_IF_ERROR(at_most("wire_versions", join.wire_versions, kMostEntries));
  for (const auto& [name, list] : {std::pair{"features", &join.features},
                                   {"model_types", &join.model_types},
                                   {"quantizations", &join.quantizations},
                                   {"compute_types", &join.compute_types}}) {
    MESH_RETURN_IF_ERROR(at_most(name, *list, kMostEntries));
    for (const std::string& text : *list) MESH_RETURN_IF_ERROR(at_most(name, text, kMostTextBytes));
  }
  for (const auto& [name, text] : {std::pair{"program_version", &join.program_version},
                                   {"address", &join.address},
                                   {"device", &join.device}}) {
    MESH_RETURN_IF_ERROR(at_most(name, *text, kMostTextBytes));
  }
  return absl::OkStatus();
}

Status check_sizes(const Heartbeat& beat) {
  MESH_RETURN_IF_ERROR(at_most("shards", beat.shards, kMostShards));
  MESH_RETURN_IF_ERROR(at_most("directives", beat.directives, kMostEntries));
  MESH_RETURN_IF_ERROR(at_most("stage_times", beat.stage_times, kMostEntries));
  MESH_RETURN_IF_ERROR(at_most("links", beat.links, kMostEntries));
  return absl::OkStatus();
}

template <class Message>
StatusOr<Message> parse_within_sizes(std::string_view text) {
  MESH_ASSIGN_OR_RETURN(Message message, parse<Message>(text));
  MESH_RETURN_IF_ERROR(check_sizes(message));
  return message;
}

}  // namespace

std::string to_json(const Join& join) {
  return json::serialize(object_of(join));
}
std::string to_json(const JoinReply& reply) {
  return json::serialize(object_of(reply));
}
std::string to_json(const Heartbeat& beat) {
  return json::serialize(object_of(beat));
}
std::string to_json(const HeartbeatReply& reply) {
  json::Object out = object_of(reply);
  if (!reply.catalogue) out.erase("catalogue");
  return json::serialize(std::move(out));
}
std::string to_json(const Leave& leave) {
  return json::serialize(object_of(leave));
}
std::string to_json(const Directive& directive) {
  return json::serialize(object_of(directive));
}
std::string to_json(const ControlError& error) {
  json::Object inner{{"code", error.code}, {"message", error.message}};
  if (!error.install.empty()) inner["install"] = error.install;
  return json::serialize(json::Object{{"error", std::move(inner)}});
}

StatusOr<Join> parse_join(std::string_view text) {
  return parse_within_sizes<Join>(text);
}
StatusOr<JoinReply> parse_join_reply(std::string_view text) {
  return parse<JoinReply>(text);
}
StatusOr<Heartbeat> parse_heartbeat(std::string_view text) {
  return parse_within_sizes<Heartbeat>(text);
}
StatusOr<HeartbeatReply> parse_heartbeat_reply(std::string_view text) {
  return parse<HeartbeatReply>(text);
}
StatusOr<Leave> parse_leave(std::string_view text) {
  return parse<Leave>(text);
}
StatusOr<Directive> parse_directive(std::string_view text) {
  return parse<Directive>(text);
}
StatusOr<ControlError> parse_control_error(std::string_view text) {
  MESH_ASSIGN_OR_RETURN(const json::Value document, json::parse(text, kControlLimits));
  MESH_ASSIGN_OR_RETURN(const json::View view, json::View(document).field("error"));
  ControlError error;
  MESH_ASSIGN_OR_RETURN(error.code, view.get_or<std::string>("code", ""));
  MESH_ASSIGN_OR_RETURN(error.message, view.get<std::string>("message"));
  MESH_ASSIGN_OR_RETURN(error.install, view.get_or<std::string>("install", ""));
  return error;
}

}  // namespace mesh::wire
