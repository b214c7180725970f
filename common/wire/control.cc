#include "common/wire/control.h"

#include <array>
#include <utility>

#include "common/json/view.h"
#include "common/wire/control_fields.h"

namespace mesh::wire {

using json::Array;
using json::Object;
using json::View;

namespace {

constexpr json::Limits kControlLimits{.max_bytes = std::size_t{4} << 20, .max_depth = 8};

Object entry_object(const CatalogueEntry& entry) {
  return {{"model", entry.model.hex()},         {"name", entry.name},
          {"model_type", entry.model_type},     {"quantization", entry.quantization},
          {"compute_type", entry.compute_type}, {"layer_count", entry.layer_count},
          {"hidden_size", entry.hidden_size}};
}

StatusOr<CatalogueEntry> read_entry(const View& view) {
  CatalogueEntry entry;
  MESH_ASSIGN_OR_RETURN(entry.model, view.get<ModelIdentity>("model"));
  MESH_ASSIGN_OR_RETURN(entry.name, view.get<std::string>("name"));
  MESH_ASSIGN_OR_RETURN(entry.model_type, view.get<std::string>("model_type"));
  MESH_ASSIGN_OR_RETURN(entry.quantization, view.get<std::string>("quantization"));
  MESH_ASSIGN_OR_RETURN(entry.compute_type, view.get<std::string>("compute_type"));
  MESH_ASSIGN_OR_RETURN(entry.layer_count, view.get<std::uint32_t>("layer_count"));
  MESH_ASSIGN_OR_RETURN(entry.hidden_size, view.get<std::uint32_t>("hidden_size"));
  return entry;
}

}  // namespace

std::string to_json(const Join& join) {
  Object out{{"stamp", stamp_object(join.stamp)},
             {"program_version", join.program_version},
             {"wire_versions", list_of(join.wire_versions)},
             {"features", list_of(join.features)},
             {"address", join.address},
             {"memory_bytes", join.memory_bytes},
             {"threads", join.threads},
             {"device", join.device},
             {"model_types", list_of(join.model_types)},
             {"quantizations", list_of(join.quantizations)},
             {"compute_types", list_of(join.compute_types)},
             {"shards", list_of(join.shards, shard_object)},
             {"highest_epoch", join.highest_epoch.value}};
  return json::serialize(out);
}

StatusOr<Join> parse_join(std::string_view text) {
  MESH_ASSIGN_OR_RETURN(const json::Value document, json::parse(text, kControlLimits));
  const View view(document);
  Join join;
  MESH_ASSIGN_OR_RETURN(join.stamp, read_stamp(view, "stamp"));
  MESH_ASSIGN_OR_RETURN(join.program_version, view.get<std::string>("program_version"));
  MESH_ASSIGN_OR_RETURN(join.wire_versions, view.get_list<std::uint32_t>("wire_versions"));
  MESH_ASSIGN_OR_RETURN(join.features, view.get_list<std::string>("features"));
  MESH_ASSIGN_OR_RETURN(join.address, view.get<std::string>("address"));
  MESH_ASSIGN_OR_RETURN(join.memory_bytes, view.get<std::uint64_t>("memory_bytes"));
  MESH_ASSIGN_OR_RETURN(join.threads, view.get<std::uint32_t>("threads"));
  MESH_ASSIGN_OR_RETURN(join.device, view.get<std::string>("device"));
  MESH_ASSIGN_OR_RETURN(join.model_types, view.get_list<std::string>("model_types"));
  MESH_ASSIGN_OR_RETURN(join.quantizations, view.get_list<std::string>("quantizations"));
  MESH_ASSIGN_OR_RETURN(join.compute_types, view.get_list<std::string>("compute_types"));
  MESH_ASSIGN_OR_RETURN(join.shards, read_list(view, "shards", read_shard));
  MESH_ASSIGN_OR_RETURN(join.highest_epoch, view.get<Epoch>("highest_epoch"));
  return join;
}

std::string to_json(const JoinReply& reply) {
  Object out{{"answers", stamp_object(reply.answers)},
             {"node", reply.node.hex()},
             {"lease", reply.lease},
             {"reply", reply.reply},
             {"wire_version", reply.wire_version},
             {"program_version", reply.program_version},
             {"heartbeat_ms", reply.heartbeat_ms},
             {"lease_ms", reply.lease_ms},
             {"epoch", reply.epoch.value},
             {"catalogue", list_of(reply.catalogue, entry_object)}};
  return json::serialize(out);
}

StatusOr<JoinReply> parse_join_reply(std::string_view text) {
  MESH_ASSIGN_OR_RETURN(const json::Value document, json::parse(text, kControlLimits));
  const View view(document);
  JoinReply reply;
  MESH_ASSIGN_OR_RETURN(reply.answers, read_stamp(view, "answers"));
  MESH_ASSIGN_OR_RETURN(reply.node, view.get<NodeId>("node"));
  MESH_ASSIGN_OR_RETURN(reply.lease, view.get<std::uint64_t>("lease"));
  MESH_ASSIGN_OR_RETURN(reply.reply, view.get<std::uint64_t>("reply"));
  MESH_ASSIGN_OR_RETURN(reply.wire_version, view.get<std::uint32_t>("wire_version"));
  MESH_ASSIGN_OR_RETURN(reply.program_version, view.get<std::string>("program_version"));
  MESH_ASSIGN_OR_RETURN(reply.heartbeat_ms, view.get<std::uint32_t>("heartbeat_ms"));
  MESH_ASSIGN_OR_RETURN(reply.lease_ms, view.get<std::uint32_t>("lease_ms"));
  MESH_ASSIGN_OR_RETURN(reply.epoch, view.get<Epoch>("epoch"));
  MESH_ASSIGN_OR_RETURN(reply.catalogue, read_list(view, "catalogue", read_entry));
  return reply;
}

std::string to_json(const HeartbeatReply& reply) {
  const auto directive = [](const SignedDirective& one) {
    return Object{{"body", one.body}, {"signature", to_hex(one.signature)}};
  };
  Object out{{"answers", stamp_object(reply.answers)},
             {"lease", reply.lease},
             {"reply", reply.reply},
             {"epoch", reply.epoch.value},
             {"directives", list_of(reply.directives, directive)}};
  if (reply.catalogue) out["catalogue"] = list_of(*reply.catalogue, entry_object);
  return json::serialize(out);
}

StatusOr<HeartbeatReply> parse_heartbeat_reply(std::string_view text) {
  MESH_ASSIGN_OR_RETURN(const json::Value document, json::parse(text, kControlLimits));
  const View view(document);
  HeartbeatReply reply;
  MESH_ASSIGN_OR_RETURN(reply.answers, read_stamp(view, "answers"));
  MESH_ASSIGN_OR_RETURN(reply.lease, view.get<std::uint64_t>("lease"));
  MESH_ASSIGN_OR_RETURN(reply.reply, view.get<std::uint64_t>("reply"));
  MESH_ASSIGN_OR_RETURN(reply.epoch, view.get<Epoch>("epoch"));
  const auto read_signed = [](const View& item) -> StatusOr<SignedDirective> {
    SignedDirective directive;
    MESH_ASSIGN_OR_RETURN(directive.body, item.get<std::string>("body"));
    MESH_ASSIGN_OR_RETURN(const View signature, item.field("signature"));
    MESH_ASSIGN_OR_RETURN(const std::string hex, signature.as<std::string>());
    const auto raw = from_hex(hex);
    if (!raw || raw->size() != 64) return signature.error("expected 128 hex digits");
    directive.signature = *raw;
    return directive;
  };
  MESH_ASSIGN_OR_RETURN(reply.directives, read_list(view, "directives", read_signed));
  MESH_ASSIGN_OR_RETURN(const auto catalogue, view.find("catalogue"));
  if (catalogue) {
    MESH_ASSIGN_OR_RETURN(reply.catalogue, read_list(view, "catalogue", read_entry));
  }
  return reply;
}

std::string to_json(const Leave& leave) {
  return json::serialize(Object{{"stamp", stamp_object(leave.stamp)}, {"lease", leave.lease}});
}

StatusOr<Leave> parse_leave(std::string_view text) {
  MESH_ASSIGN_OR_RETURN(const json::Value document, json::parse(text, kControlLimits));
  const View view(document);
  Leave leave;
  MESH_ASSIGN_OR_RETURN(leave.stamp, read_stamp(view, "stamp"));
  MESH_ASSIGN_OR_RETURN(leave.lease, view.get<std::uint64_t>("lease"));
  return leave;
}

namespace {
constexpr std::array<std::string_view, 2> kDirectiveKinds{"LOAD_SHARD", "DROP_SHARD"};
}

std::string to_json(const Directive& directive) {
  Object out{{"id", directive.id.hex()},
             {"node", directive.node.hex()},
             {"epoch", directive.epoch.value},
             {"kind", name_of(kDirectiveKinds, directive.kind)},
             {"model", directive.model.hex()},
             {"layers", layers_array(directive.layers)},
             {"quantization", directive.quantization},
             {"expires_in_ms", directive.expires_in_ms}};
  return json::serialize(out);
}

StatusOr<Directive> parse_directive(std::string_view text) {
  MESH_ASSIGN_OR_RETURN(const json::Value document, json::parse(text, kControlLimits));
  const View view(document);
  Directive directive;
  MESH_ASSIGN_OR_RETURN(directive.id, view.get<DirectiveId>("id"));
  MESH_ASSIGN_OR_RETURN(directive.node, view.get<NodeId>("node"));
  MESH_ASSIGN_OR_RETURN(directive.epoch, view.get<Epoch>("epoch"));
  MESH_ASSIGN_OR_RETURN(directive.kind, read_enum<DirectiveKind>(view, "kind", kDirectiveKinds));
  MESH_ASSIGN_OR_RETURN(directive.model, view.get<ModelIdentity>("model"));
  MESH_ASSIGN_OR_RETURN(directive.layers, read_layers(view, "layers"));
  MESH_ASSIGN_OR_RETURN(directive.quantization, view.get<std::string>("quantization"));
  MESH_ASSIGN_OR_RETURN(directive.expires_in_ms, view.get<std::uint32_t>("expires_in_ms"));
  return directive;
}

std::string to_json(const ControlError& error) {
  Object inner{{"code", error.code}, {"message", error.message}};
  if (!error.install.empty()) inner["install"] = error.install;
  return json::serialize(Object{{"error", std::move(inner)}});
}

StatusOr<ControlError> parse_control_error(std::string_view text) {
  MESH_ASSIGN_OR_RETURN(const json::Value document, json::parse(text, kControlLimits));
  MESH_ASSIGN_OR_RETURN(const View view, View(document).field("error"));
  ControlError error;
  MESH_ASSIGN_OR_RETURN(error.code, view.get_or<std::string>("code", ""));
  MESH_ASSIGN_OR_RETURN(error.message, view.get<std::string>("message"));
  MESH_ASSIGN_OR_RETURN(error.install, view.get_or<std::string>("install", ""));
  return error;
}

}  // namespace mesh::wire
