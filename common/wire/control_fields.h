#pragma once

#include <array>
#include <string_view>
#include <tuple>

#include "common/wire/control.h"

// The fields of control messages as proto-docs/directives.md names them: one list a message, which writing
// and reading both follow (control_json.h). Private to common/wire.
namespace mesh::wire {

/// `may_miss`: a reader takes a message without it, and keeps the member's default.
template <class Message, class Member>
struct Field {
  std::string_view name;
  Member Message::* member;
  bool may_miss = false;
};
template <class Message, class Member>
Field(std::string_view, Member Message::*) -> Field<Message, Member>;
template <class Message, class Member>
Field(std::string_view, Member Message::*, bool) -> Field<Message, Member>;

template <class Message>
struct Fields;

template <>
struct Fields<Stamp> {
  static constexpr std::tuple list{Field{"start", &Stamp::start}, Field{"number", &Stamp::number}};
};
template <>
struct Fields<ShardStatus> {
  static constexpr std::tuple list{Field{"model", &ShardStatus::model},
                                   Field{"layers", &ShardStatus::layers},
                                   Field{"state", &ShardStatus::state},
                                   Field{"bytes_done", &ShardStatus::bytes_done},
                                   Field{"bytes_total", &ShardStatus::bytes_total},
                                   Field{"ready", &ShardStatus::ready, true}};
};
template <>
struct Fields<CatalogueEntry> {
  using T = CatalogueEntry;
  static constexpr std::tuple list{Field{"model", &T::model},
                                   Field{"name", &T::name},
                                   Field{"model_type", &T::model_type},
                                   Field{"quantization", &T::quantization},
                                   Field{"compute_type", &T::compute_type},
                                   Field{"layer_count", &T::layer_count},
                                   Field{"hidden_size", &T::hidden_size}};
};
template <>
struct Fields<Join> {
  using T = Join;
  static constexpr std::tuple list{Field{"stamp", &T::stamp},
                                   Field{"program_version", &T::program_version},
                                   Field{"wire_versions", &T::wire_versions},
                                   Field{"features", &T::features},
                                   Field{"address", &T::address},
                                   Field{"memory_bytes", &T::memory_bytes},
                                   Field{"threads", &T::threads},
                                   Field{"device", &T::device},
                                   Field{"model_types", &T::model_types},
                                   Field{"quantizations", &T::quantizations},
                                   Field{"compute_types", &T::compute_types},
                                   Field{"shards", &T::shards},
                                   Field{"read_bytes_per_second", &T::read_bytes_per_second, true},
                                   Field{"highest_epoch", &T::highest_epoch}};
};
template <>
struct Fields<JoinReply> {
  using T = JoinReply;
  static constexpr std::tuple list{Field{"answers", &T::answers},
                                   Field{"node", &T::node},
                                   Field{"lease", &T::lease},
                                   Field{"reply", &T::reply},
                                   Field{"wire_version", &T::wire_version},
                                   Field{"program_version", &T::program_version},
                                   Field{"heartbeat_ms", &T::heartbeat_ms},
                                   Field{"lease_ms", &T::lease_ms},
                                   Field{"epoch", &T::epoch},
                                   Field{"catalogue", &T::catalogue}};
};
template <>
struct Fields<Directive> {
  using T = Directive;
  static constexpr std::tuple list{Field{"id", &T::id},
                                   Field{"node", &T::node},
                                   Field{"epoch", &T::epoch},
                                   Field{"kind", &T::kind},
                                   Field{"model", &T::model},
                                   Field{"layers", &T::layers},
                                   Field{"quantization", &T::quantization},
                                   Field{"expires_in_ms", &T::expires_in_ms}};
};
template <>
struct Fields<DirectiveStatus> {
  using T = DirectiveStatus;
  static constexpr std::tuple list{Field{"id", &T::id}, Field{"state", &T::state},
                                   Field{"message", &T::message}};
};
template <>
struct Fields<StageTime> {
  using T = StageTime;
  static constexpr std::tuple list{Field{"model", &T::model}, Field{"layers", &T::layers},
                                   Field{"decode_seconds", &T::decode_seconds},
                                   Field{"prefill_seconds", &T::prefill_seconds}};
};
template <>
struct Fields<LinkFigure> {
  using T = LinkFigure;
  static constexpr std::tuple list{
      Field{"address", &T::address}, Field{"round_trip_seconds", &T::round_trip_seconds},
      Field{"bytes_per_second", &T::bytes_per_second}, Field{"compression_ratio", &T::compression_ratio}};
};
template <>
struct Fields<NodeLoad> {
  using T = NodeLoad;
  static constexpr std::tuple list{
      Field{"sessions", &T::sessions}, Field{"waiting_segments", &T::waiting_segments},
      Field{"kv_blocks_used", &T::kv_blocks_used}, Field{"kv_blocks_total", &T::kv_blocks_total},
      Field{"memory_free_bytes", &T::memory_free_bytes}};
};
template <>
struct Fields<Heartbeat> {
  using T = Heartbeat;
  static constexpr std::tuple list{Field{"stamp", &T::stamp},
                                   Field{"lease", &T::lease},
                                   Field{"last_reply", &T::last_reply},
                                   Field{"highest_epoch", &T::highest_epoch},
                                   Field{"draining", &T::draining, true},
                                   Field{"shards", &T::shards},
                                   Field{"directives", &T::directives},
                                   Field{"load", &T::load},
                                   Field{"stage_times", &T::stage_times},
                                   Field{"links", &T::links}};
};
template <>
struct Fields<HeartbeatReply> {
  using T = HeartbeatReply;
  static constexpr std::tuple list{
      Field{"answers", &T::answers},       Field{"lease", &T::lease},
      Field{"reply", &T::reply},           Field{"epoch", &T::epoch},
      Field{"directives", &T::directives}, Field{"catalogue", &T::catalogue, true}};
};
template <>
struct Fields<Leave> {
  static constexpr std::tuple list{Field{"stamp", &Leave::stamp}, Field{"lease", &Leave::lease}};
};

/// `names[i]` is the text of the enumerator with value i.
template <class Enum>
struct EnumNames;
template <>
struct EnumNames<ShardState> {
  static constexpr std::array<std::string_view, 3> names{"loading", "ready", "draining"};
};
template <>
struct EnumNames<DirectiveKind> {
  static constexpr std::array<std::string_view, 2> names{"LOAD_SHARD", "DROP_SHARD"};
};
template <>
struct EnumNames<DirectiveState> {
  static constexpr std::array<std::string_view, 5> names{"accepted", "working", "done", "failed", "refused"};
};

}  // namespace mesh::wire
