#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"

// Control messages between a node's agent and the tracker: join, heartbeat, directives. Rules:
// proto-docs/directives.md. All are JSON objects in HTTP POST, signed as proto-docs/http.md says. Unknown
// fields are ignored, so that a newer peer may say more; a missing or wrong field is an error that names its
// path.
namespace mesh::wire {

inline constexpr std::string_view kJoinRoute = "/mesh/v1/join";
inline constexpr std::string_view kHeartbeatRoute = "/mesh/v1/heartbeat";
inline constexpr std::string_view kLeaveRoute = "/mesh/v1/leave";
/// What a directive's signature covers: this text, then the directive's body, byte for byte.
inline constexpr std::string_view kDirectiveSignaturePrefix = "meshnet/1 directive\n";

/// 16 random bytes; a directive is carried out once however often it arrives.
using DirectiveId = OpaqueId<struct DirectiveTag, 16>;

/// Orders a node's messages for ever: `start` counts the starts of this identity (kept in its data folder),
/// `number` its joins and heartbeats since. A stamp that is not above the last one seen is a replay and
/// refused.
struct Stamp {
  std::uint64_t start = 0;
  std::uint64_t number = 0;

  friend auto operator<=>(const Stamp&, const Stamp&) = default;
};

/// Shows a node that a session's opening or renewal is new and for it (proto-docs/session.md, Freshness):
/// `stamp` is of the last join or heartbeat that the tracker took from `node`.
struct Freshness {
  NodeId node;
  Stamp stamp;

  friend bool operator==(const Freshness&, const Freshness&) = default;
};

enum class ShardState { kLoading, kReady, kDraining };

/// One shard at a node.
struct ShardStatus {
  ModelIdentity model;
  LayerRange layers;
  ShardState state = ShardState::kLoading;
  std::uint64_t bytes_done = 0;   ///< of weights read so far; equals bytes_total when ready
  std::uint64_t bytes_total = 0;  ///< 0: not known yet
  /// While it is loading: the layers, from its first on, that take sessions already.
  LayerRange ready = {};

  friend bool operator==(const ShardStatus&, const ShardStatus&) = default;
};

/// The layers of a shard that new sessions may use; `ready` that is no such range counts as none.
inline LayerRange layers_in_use(const ShardStatus& shard) {
  if (shard.state == ShardState::kReady) return shard.layers;
  const bool some = shard.state == ShardState::kLoading && !shard.ready.empty() &&
                    shard.ready.begin == shard.layers.begin && shard.layers.contains(shard.ready);
  return some ? shard.ready : LayerRange{};
}

/// A model as the tracker offers it: one entry per identity, so per quantisation and compute type.
struct CatalogueEntry {
  ModelIdentity model;
  std::string name;          ///< what clients call it
  std::string model_type;    ///< HuggingFace's `model_type`
  std::string quantization;  ///< "bfloat16", "int8", "nf4" or "fp8"
  std::string compute_type;  ///< "float32" or "bfloat16"
  std::uint32_t layer_count = 0;
  std::uint32_t hidden_size = 0;

  friend bool operator==(const CatalogueEntry&, const CatalogueEntry&) = default;
};

struct Join {
  Stamp stamp;
  std::string program_version;               ///< "0.1.0"
  std::vector<std::uint32_t> wire_versions;  ///< all that the node speaks
  std::vector<std::string> features;         ///< optional abilities by name
  std::string address;                       ///< HOST:PORT where peers reach it
  std::uint64_t memory_bytes = 0;            ///< for weights, caches and kept outputs together
  std::uint32_t threads = 0;
  std::string device;                      ///< "cpu" or "cuda: <name>"
  std::vector<std::string> model_types;    ///< families that it can build
  std::vector<std::string> quantizations;  ///< that it accepts, best first
  std::vector<std::string> compute_types;  ///< that it accepts, best first
  std::vector<ShardStatus> shards;         ///< what it holds now
  double read_bytes_per_second = 0;        ///< of its memory, as `meshnet-node bench` found; 0: not measured
  Epoch highest_epoch;                     ///< highest ever seen; the tracker starts above it

  friend bool operator==(const Join&, const Join&) = default;
};

struct JoinReply {
  Stamp answers;                   ///< the join's stamp
  NodeId node;                     ///< as the tracker computes it from the key
  std::uint64_t lease = 0;         ///< number of this lease; each join begins another
  std::uint64_t reply = 0;         ///< number of this reply within the tracker's run
  std::uint32_t wire_version = 0;  ///< the common one to speak
  std::string program_version;     ///< the tracker's
  std::uint32_t heartbeat_ms = 0;
  std::uint32_t lease_ms = 0;
  Epoch epoch;
  std::vector<CatalogueEntry> catalogue;

  friend bool operator==(const JoinReply&, const JoinReply&) = default;
};

enum class DirectiveKind { kLoadShard, kDropShard };

/// An order to one node. It names what it may: a model by identity, a range, a quantisation; never a path or
/// a URL.
struct Directive {
  DirectiveId id;
  NodeId node;
  Epoch epoch;
  DirectiveKind kind = DirectiveKind::kLoadShard;
  ModelIdentity model;
  LayerRange layers;
  std::string quantization;
  std::uint32_t expires_in_ms = 0;  ///< from the reply that brings it; to be begun before

  friend bool operator==(const Directive&, const Directive&) = default;
};

/// A directive's JSON text with the tracker's ed25519 signature over kDirectiveSignaturePrefix + body.
struct SignedDirective {
  std::string body;
  std::string signature;  ///< 64 raw bytes; hex in JSON

  friend bool operator==(const SignedDirective&, const SignedDirective&) = default;
};

enum class DirectiveState { kAccepted, kWorking, kDone, kFailed, kRefused };
constexpr bool is_final(DirectiveState state) {
  return state >= DirectiveState::kDone;
}

/// Acknowledgement of a directive; a final one is repeated until a reply to a heartbeat that carried it
/// arrives.
struct DirectiveStatus {
  DirectiveId id;
  DirectiveState state = DirectiveState::kAccepted;
  std::string message;  ///< why it failed or was refused, else empty

  friend bool operator==(const DirectiveStatus&, const DirectiveStatus&) = default;
};

/// Moving averages of one shard's steps; 0: not measured yet.
struct StageTime {
  ModelIdentity model;
  LayerRange layers;
  double decode_seconds = 0;   ///< a decode step of one row
  double prefill_seconds = 0;  ///< a step of 128 rows

  friend bool operator==(const StageTime&, const StageTime&) = default;
};

/// Moving averages of the link to one next hop; 0: not measured yet.
struct LinkFigure {
  std::string address;            ///< HOST:PORT of the next hop
  double round_trip_seconds = 0;  ///< of a small request
  double bytes_per_second = 0;    ///< of bulk bodies on the wire
  double compression_ratio = 0;   ///< wire bytes ÷ raw bytes

  friend bool operator==(const LinkFigure&, const LinkFigure&) = default;
};

struct NodeLoad {
  std::uint32_t sessions = 0;
  std::uint32_t waiting_segments = 0;  ///< received, not yet computed
  std::uint32_t kv_blocks_used = 0;
  std::uint32_t kv_blocks_total = 0;
  std::uint64_t memory_free_bytes = 0;  ///< of what the node declared

  friend bool operator==(const NodeLoad&, const NodeLoad&) = default;
};

struct Heartbeat {
  Stamp stamp;
  std::uint64_t lease = 0;       ///< of the join reply
  std::uint64_t last_reply = 0;  ///< number of the last reply received; only this renews the lease
  Epoch highest_epoch;
  bool draining = false;  ///< wants its shards covered elsewhere, takes no new sessions
  std::vector<ShardStatus> shards;
  std::vector<DirectiveStatus> directives;
  NodeLoad load;
  std::vector<StageTime> stage_times;
  std::vector<LinkFigure> links;

  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

struct HeartbeatReply {
  Stamp answers;
  std::uint64_t lease = 0;
  std::uint64_t reply = 0;
  Epoch epoch;
  std::vector<SignedDirective> directives;
  /// Present when the catalogue changed since the last reply that the node acknowledged.
  std::optional<std::vector<CatalogueEntry>> catalogue;

  friend bool operator==(const HeartbeatReply&, const HeartbeatReply&) = default;
};

/// The node goes for good (its owner stopped it): its shards stop counting at once.
struct Leave {
  Stamp stamp;
  std::uint64_t lease = 0;

  friend bool operator==(const Leave&, const Leave&) = default;
};

/// Body of every refusal on the mesh routes: {"error":{"code","message"}} and, with 426, "install".
/// Codes of the control routes: "join_key", "signature", "replay", "unknown_node" (join again), "wrong_lease"
/// (join again), "upgrade" (426), "bad_message", "busy".
struct ControlError {
  std::string code;
  std::string message;
  std::string install;  ///< with "upgrade": the program version to install

  friend bool operator==(const ControlError&, const ControlError&) = default;
};

std::string to_json(const Join&);
std::string to_json(const JoinReply&);
std::string to_json(const Heartbeat&);
std::string to_json(const HeartbeatReply&);
std::string to_json(const Leave&);
std::string to_json(const Directive&);
std::string to_json(const ControlError&);

/// kInvalidArgument with the field's path for anything malformed.
StatusOr<Join> parse_join(std::string_view json);
StatusOr<JoinReply> parse_join_reply(std::string_view json);
StatusOr<Heartbeat> parse_heartbeat(std::string_view json);
StatusOr<HeartbeatReply> parse_heartbeat_reply(std::string_view json);
StatusOr<Leave> parse_leave(std::string_view json);
StatusOr<Directive> parse_directive(std::string_view json);
StatusOr<ControlError> parse_control_error(std::string_view json);

}  // namespace mesh::wire
