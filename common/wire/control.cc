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
  return parse<Join>(text);
}
StatusOr<JoinReply> parse_join_reply(std::string_view text) {
  return parse<JoinReply>(text);
}
StatusOr<Heartbeat> parse_heartbeat(std::string_view text) {
  return parse<Heartbeat>(text);
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
