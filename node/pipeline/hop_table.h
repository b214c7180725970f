#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/wire/segment.h"
#include "node/pipeline/recent_stamps.h"
#include "node/pipeline/step.h"

namespace mesh::pipeline {

struct HopFaults;

struct HopOptions {
  std::uint64_t cache_bytes = std::uint64_t{1} << 30;  ///< on the device, for caches and kept prompts
  std::uint64_t spill_bytes = 0;  ///< of host memory, for caches that make room; 0: none does
  std::uint64_t inbound_bytes = std::uint64_t{256} << 20;  ///< for the windows of all sessions
  std::uint64_t kept_bytes = std::uint64_t{512} << 20;     ///< for kept outputs of all sessions
  std::uint64_t prefix_bytes = 0;                          ///< of cache_bytes, for prompts kept; 0: none are
  std::uint32_t cache_block = kKvBlockTokens;              ///< tokens
  std::size_t max_sessions = 4096;
  wire::Window window;               ///< granted to every session
  std::uint32_t decode_rows = 64;    ///< most rows of a decode step
  std::uint32_t prefill_rows = 128;  ///< a larger segment makes a step alone
  std::uint32_t replay_rows = 128;   ///< rows of a resent segment
  std::size_t frames_in_flight = 2;  ///< per next hop and lane
  std::size_t max_frame_segments = 64;
  std::uint64_t max_frame_bytes = std::uint64_t{4} << 20;  ///< raw; one segment may exceed it alone
  Duration token_repeat = std::chrono::milliseconds(500);
  Duration retry_first = std::chrono::milliseconds(20);  ///< doubles up to retry_last
  Duration retry_last = std::chrono::seconds(1);
  Duration neighbour_patience = std::chrono::seconds(1);  ///< of failures before the head is told
  Duration tombstone = 2 * kFreshFor;  ///< no opening from before a closing is fresh when it ends
};

/// One thing to POST. `id` comes back in the matching …_answered or …_failed. Nothing is dropped on a
/// failure: what is still wanted becomes due again after a back-off.
struct OutSegment {
  wire::Segment segment;  ///< deadline_ms is already counted down
  SessionSecret secret;   ///< keys its MAC
};
struct OutFrame {  ///< POST /mesh/v1/frames at to.url
  std::uint64_t id = 0;
  NodeId node;
  std::string url;
  wire::Lane lane = wire::Lane::kDecode;
  std::vector<OutSegment> segments;
};
struct OutAsk {  ///< POST /mesh/v1/cursors at url: a blocked sender asks for credit
  std::uint64_t id = 0;
  NodeId node;
  std::string url;
  wire::CursorsRequest request;
};
struct OutToken {
  wire::TokenMessage message;
  SessionSecret secret;
};
struct OutTokens {  ///< POST /mesh/v1/tokens at head_url
  std::uint64_t id = 0;
  std::string head_url;
  std::vector<OutToken> tokens;
};
struct OutReport {  ///< POST /mesh/v1/report at head_url
  std::uint64_t id = 0;
  std::string head_url;
  wire::Report report;
};

struct HopStats {
  std::size_t sessions = 0;
  std::size_t steps_running = 0;
  std::uint64_t cache_bytes = 0;    ///< reserved on the device
  std::uint64_t spilled_bytes = 0;  ///< caches in host memory
  std::uint64_t spilled_caches = 0;
  std::uint64_t inbound_bytes = 0;  ///< reserved
  std::uint64_t kept_bytes = 0;     ///< in use
  std::uint64_t prefix_bytes = 0;   ///< kept blocks of prompts
  std::uint64_t prefix_blocks = 0;  ///< the same, blocks of 128 tokens × layers
  std::uint64_t segments_waiting = 0;
  std::uint64_t duplicates = 0, refused = 0, trims = 0, resent_rows = 0;  ///< since the start
  std::uint64_t prefix_hits = 0, prefix_misses = 0;  ///< tokens offered by new sessions: had, and not had
  std::uint64_t prefix_evictions = 0;                ///< kept blocks that went to make room
  std::uint64_t spills = 0;                          ///< since the start: caches that went to host memory
  std::uint64_t dropped_caches = 0;  ///< since the start: caches let go of, to be computed again
};

/// What the check of a frame's MAC needs; by value, so that HTTP threads may hold a copy.
struct SessionKeys {
  Generation generation;
  SessionSecret secret;
};

/// The state machine of every session that this node is a hop or the tail of, and the scheduler of its steps.
/// Sans-IO: events go in by methods, effects are taken out by next_…(), each until it gives nothing; then the
/// caller sleeps until an event or next_wakeup(). One thread. The rules are proto-docs/session.md; the
/// invariants:
///  - a session has at most one step running, so a cache's owner is never in doubt;
///  - segments of one generation enter steps in the order of seq, each exactly once;
///  - engine and table agree on every cache and kept block, because orders and steps are carried out in turn;
///  - what the device holds never exceeds set_cache_bytes(), nor host memory spill_bytes, at any order;
///  - a session whose cache waits for room gets its turn;
///  - a step's results belong to the cache they were computed for, whatever generation came meanwhile.
class HopTable {
 public:
  explicit HopTable(HopOptions options);
  ~HopTable();
  HopTable(const HopTable&) = delete;
  HopTable& operator=(const HopTable&) = delete;

  /// `shard` is what the node holds ready for request.range of request.identity, or none (then
  /// kShardNotHeld).
  wire::OpenReply open(const wire::OpenRequest& request, const std::optional<ShardView>& shard,
                       TimePoint now);
  void close(const wire::CloseRequest& request, TimePoint now);
  wire::CursorsReply cursors(const wire::CursorsRequest& request) const;
  wire::RenewReply renew(const wire::RenewRequest& request, TimePoint now);
  /// What weights, steps and others leave of the device for caches and kept prompts; before open(), and
  /// before next_step() while waits_for_room().
  void set_cache_bytes(std::uint64_t bytes);
  /// What of the device is promised to sessions and taken by kept prompts; and what that may come to with
  /// next_step(), set_cache_bytes() allowing.
  std::uint64_t promised_bytes() const;
  std::uint64_t wanted_bytes() const;
  /// Right after open(): what that promised is not to be had. As if the session had never been.
  void withdraw(const wire::HopKey& hop);
  /// A session has work whose cache is not on the device.
  bool waits_for_room() const;
  /// While draining, openings of sessions that are not here yet are refused.
  void set_draining(bool draining);

  /// For the MAC check before accept(); none when the session is not open here.
  std::optional<SessionKeys> keys(const wire::HopKey& hop) const;
  /// Takes a segment whose MAC was checked (one of another generation than keys() gives needs no check: it is
  /// refused) and whose payload is decoded. At hop 0 the head calls it directly.
  wire::SegmentAnswer accept(wire::Segment segment, TimePoint now);

  /// The next forward, when one is ready: the oldest waiting segment and all that may share its step. Decode
  /// and prefill alternate while both wait. The caller may run several steps at once, in the order given.
  std::optional<StepWork> next_step(TimePoint now);
  /// While steps run: from when on next_step() should be asked for one that is to follow without a gap.
  /// Sooner, it would go without sessions that come before its turn; so not before the running one should end
  /// soon, as the last one of its lane with layers did, or when no session is left that could come. None:
  /// nothing waits.
  std::optional<TimePoint> ahead_from() const;
  void step_done(StepOutput output, TimePoint now);

  std::optional<OutFrame> next_frame(TimePoint now);
  void frame_answered(std::uint64_t id, const std::vector<wire::SegmentAnswer>& answers, TimePoint now);
  void frame_failed(std::uint64_t id, const Status& status, TimePoint now);

  std::optional<OutAsk> next_ask(TimePoint now);
  void ask_answered(std::uint64_t id, const wire::CursorsReply& reply, TimePoint now);
  void ask_failed(std::uint64_t id, TimePoint now);

  std::optional<OutTokens> next_tokens(TimePoint now);
  void tokens_answered(std::uint64_t id, const std::vector<wire::TokenAnswer>& answers, TimePoint now);
  void tokens_failed(std::uint64_t id, TimePoint now);

  std::optional<OutReport> next_report(TimePoint now);
  void report_answered(std::uint64_t id);
  void report_failed(std::uint64_t id, TimePoint now);

  /// Ends leases and tombstones. Call it at next_wakeup() and about every second.
  void tick(TimePoint now);
  /// When a retry, a repeat, an ask or a lease falls due; none when nothing waits for time.
  std::optional<TimePoint> next_wakeup() const;
  /// Orders to the engine, to be carried out one after the other: after the steps that next_step() gave
  /// before, and before those that it gives with or after the call that made the order. So take them after
  /// next_step() too, and before its step is run.
  std::vector<CacheOrder> take_orders();
  /// A SpillCache or RestoreCache was carried out, or failed; in the order in which they were given. They,
  /// and what was ordered after them, may be carried out beside steps: until then no step has the caches that
  /// they name, nor those that began since.
  void cache_moved(const CacheMoved& moved);
  /// Lets go of kept prompts until `bytes` or more came free, or none is left; how many did.
  std::uint64_t shrink_prefixes(std::uint64_t bytes);
  /// A ShareBlock could not be carried out.
  void prefix_lost(PrefixBlockId id);
  HopStats stats() const;

 private:
  friend class HopTableTester;  // the simulator's, to plant faults
  class Impl;
  HopTable(HopOptions options, const HopFaults& faults);

  std::unique_ptr<Impl> impl_;
};

}  // namespace mesh::pipeline
