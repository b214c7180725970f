#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/hub/checkpoint.h"
#include "common/identity/key_pair.h"
#include "common/net/address.h"
#include "common/wire/codec.h"
#include "common/wire/control.h"
#include "common/wire/messages.h"
#include "common/wire/segment.h"
#include "node/engine/engine.h"
#include "node/pipeline/hop_table.h"
#include "node/runtime/fault_points.h"
#include "node/runtime/observer.h"

namespace mesh {

struct NodeOptions {
  pipeline::HopOptions hop;
  wire::CodecPolicy codec = wire::CodecPolicy::kAuto;
  /// Signs what goes to other nodes and to the head; none on loopback without a tracker.
  std::shared_ptr<const KeyPair> identity;
  /// Which addresses openings may name as next hop or head.
  net::AddressPolicy peers = net::AddressPolicy::any();
  /// Openings with this head_url hand their tokens and reports to the HeadSink, not to HTTP. Empty: none do.
  std::string local_head_url;
  /// Longest time that the shards' running sessions get to end when a shard is dropped.
  Duration drain = std::chrono::seconds(60);
  FaultPoints* faults = nullptr;     ///< outlives the node
  NodeObserver* observer = nullptr;  ///< outlives the node
};

/// Where an embedded node (the tracker's hop 0) hands what it would otherwise POST to the head. Called from
/// one thread of the node's own, never while a call of Node waits, so an implementation may take the locks
/// under which it calls Node. It must not block for long.
class HeadSink {
 public:
  virtual ~HeadSink() = default;
  /// Tokens that this node sampled as the tail. The messages come from this process: no MAC to check.
  virtual std::vector<wire::TokenAnswer> on_tokens(const std::vector<wire::TokenMessage>& tokens) = 0;
  virtual void on_report(const wire::Report& report) = 0;
  /// A session whose input is token ids advanced: credit for more segments.
  virtual void on_cursor(const wire::CursorEntry& cursor) = 0;
};

/// One loaded shard with what a step over it took lately; seconds are 0 while unmeasured.
struct ShardFigures {
  wire::ShardStatus status;
  engine::ShardSpec spec;
  std::uint64_t memory_bytes = 0;
  std::uint64_t steps = 0;
  std::uint64_t rows = 0;
  double decode_seconds = 0;   ///< a decode step, mean per step
  double prefill_seconds = 0;  ///< 128 rows of prefill
};

/// One next hop. Counters since the start.
struct LinkCounters {
  std::string address;
  std::uint64_t frames = 0;
  std::uint64_t raw_bytes = 0;   ///< payloads before coding
  std::uint64_t wire_bytes = 0;  ///< bodies as sent
  std::uint64_t failures = 0;
  double round_trip_seconds = 0;
  double bytes_per_second = 0;
};

struct NodeFigures {
  pipeline::HopStats hop;
  engine::MemoryUse memory;
  std::vector<ShardFigures> shards;
  std::vector<LinkCounters> links;
  std::uint64_t steps = 0;
  std::uint64_t step_rows = 0;
  std::uint64_t step_segments = 0;
  std::uint64_t decode_steps = 0;  ///< of `steps`; the others prefill
  std::uint64_t decode_rows = 0;   ///< of `step_rows`
  std::uint64_t layer_rows = 0;    ///< rows · layers
  /// KV blocks that fit: those in use, those of kept prompts, and what free memory holds of the shards'
  /// widest; 0 without a shard.
  std::uint64_t cache_blocks_capacity = 0;
};

/// What POST /mesh/v1/forward does: one forward over a temporary cache, or over a named one that goes on.
struct ForwardRequest {
  ModelIdentity identity;
  LayerRange range;
  std::vector<TokenId> ids;  ///< a range from 0; else `hidden`
  std::string hidden;        ///< bf16 [rows, H], little-endian
  std::uint32_t rows = 0;
  std::vector<Position> positions;            ///< rotary, [rows]; empty: counted from `start`
  std::optional<engine::AttentionMask> mask;  ///< [rows, start + rows]
  std::string session;                        ///< empty: stateless
  bool want_logits = false;
};
struct ForwardReply {
  std::string hidden;           ///< bf16 [rows, H], before the final norm
  std::vector<TokenId> ids;     ///< at the tail: arg-max of each row
  std::vector<float> logprobs;  ///< of those
  std::vector<float> logits;    ///< at the tail, when asked for: [rows, V]
  Position next = 0;            ///< tokens in the session's cache now
};

/// A segment for accept(). `verified`: its MAC was checked under keys() of its own generation, or it comes
/// from this process.
struct Arrival {
  wire::Segment segment;
  bool verified = true;
};

/// One node: engine, shards, hop table, and the lanes to its next hops. Every method may be called from any
/// thread; none waits for a forward or for another program unless it says so. docs/architecture.md follows a
/// frame through it.
class Node {
 public:
  /// `sink` may be null when options.local_head_url is empty; it must outlive the node.
  static std::unique_ptr<Node> start(NodeOptions options, std::unique_ptr<engine::Engine> engine,
                                     HeadSink* sink);
  virtual ~Node() = default;

  // Sessions: what the routes of proto-docs/http.md call after their checks, and the tracker calls for its
  // hop 0. A node that stops answers kDraining and kUnknownSession.
  virtual wire::OpenReply open(const wire::OpenRequest& request) = 0;
  virtual void close(const wire::CloseRequest& request) = 0;
  virtual wire::CursorsReply cursors(const wire::CursorsRequest& request) = 0;
  virtual wire::RenewReply renew(const wire::RenewRequest& request) = 0;
  /// Answers in the segments' order. A segment that is not verified is only ever refused.
  virtual std::vector<wire::SegmentAnswer> accept(std::vector<Arrival> segments) = 0;
  /// Keys the MACs of a session, for the check before accept().
  virtual std::optional<pipeline::SessionKeys> keys(const wire::HopKey& hop) = 0;

  // Shards.
  /// Loads on the calling thread while steps go on. Bytes are checked against memory first;
  /// kResourceExhausted says needed and free. Loading what is held already is OK at once.
  virtual Status load_shard(const std::shared_ptr<hub::Checkpoint>& files, const ModelIdentity& identity,
                            const engine::ShardSpec& spec, const engine::ProgressCallback& progress) = 0;
  /// No new sessions on it; waits until its sessions ended or options.drain passed, then frees it.
  virtual Status drop_shard(const ModelIdentity& identity, const LayerRange& range) = 0;
  virtual std::vector<wire::ShardStatus> shards() const = 0;
  /// The profile of a held shard of that identity; kNotFound.
  virtual StatusOr<engine::ModelProfile> profile(const ModelIdentity& identity) const = 0;

  /// Waits for the forward.
  virtual StatusOr<ForwardReply> forward(ForwardRequest request) = 0;

  virtual NodeFigures figures() = 0;
  /// Of figures(), without the way over the strand.
  virtual engine::MemoryUse memory() const = 0;
  virtual engine::Engine& engine() = 0;
  /// Refuses openings of new sessions from now on; running ones go on.
  virtual void set_draining(bool draining) = 0;
  /// Waits until no session is left or `longest` passed.
  virtual void wait_idle(Duration longest) = 0;
  /// Ends all threads; later calls answer kUnavailable or nothing. The destructor calls it.
  virtual void stop() = 0;
};

}  // namespace mesh
