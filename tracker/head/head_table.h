#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/wire/segment.h"

namespace mesh::head {

struct HeadOptions {
  std::string head_url;  ///< where tails and hops send tokens and reports
  std::uint32_t lease_ms = 30'000;
  std::uint32_t max_failovers = 5;  ///< within failover_period, else the session ends
  Duration failover_period = std::chrono::minutes(1);
  Duration replacement_wait = std::chrono::seconds(120);
  Duration no_room_wait =
      std::chrono::milliseconds(100);  ///< likewise, of a session without room, before its first token
  Duration route_retry = std::chrono::milliseconds(500);    ///< between RouteWanted of one search
  Duration exclusion = std::chrono::seconds(5);             ///< how long a lost node is not asked for again
  Duration answer_timeout = std::chrono::seconds(2);        ///< for openings and cursors
  Duration first_step_deadline = std::chrono::seconds(10);  ///< before anything was measured, and for a spare
  Duration min_step_deadline = std::chrono::milliseconds(500);
  double step_deadline_factor = 6;                  ///< times the measured step
  Duration retry = std::chrono::milliseconds(100);  ///< after an opening or question that failed
  std::uint32_t attempts = 3;                       ///< of each, then the node is lost
  Duration credit_interval =
      std::chrono::milliseconds(10);  ///< between questions when hop 0's window is full
  Duration probe_interval =
      std::chrono::milliseconds(500);  ///< between cursor questions while a step is late
  std::uint32_t stalled_probes = 4;    ///< questions without progress: the hop is lost
};

/// One prompt. Stop strings, detokenising and the client's side are the gateway's.
struct StartRequest {
  SessionId session;  ///< random
  ModelIdentity identity;
  std::uint32_t layers = 0;      ///< of the model
  std::vector<TokenId> prompt;   ///< 1 … tokens
  std::uint32_t max_tokens = 0;  ///< of the answer, ≥ 1
  std::vector<TokenId> eos_ids;
  wire::Sampling sampling;
  std::uint32_t chunk = 128;  ///< prefill rows, 32 … 1024
  /// The principal's: hops may begin with what they kept of earlier prompts under it. None: nothing is
  /// offered.
  std::optional<wire::PrefixSalt> salt;
};

/// Names one hop of one route for the answer to an action.
struct HopRef {
  SessionId session;
  Generation generation;
  std::size_t index = 0;   ///< 0: the tracker's embedded node
  std::uint32_t wave = 0;  ///< tells a late answer from the one that is waited for

  friend auto operator<=>(const HopRef&, const HopRef&) = default;
};

/// Find hops for exactly `range` (one or several in a row), from nodes that are ready and not excluded;
/// answered by route_found with `request`, or not at all: it is asked again every route_retry. `first` is set
/// for a new session: then the answer begins with the embedded node, whose range [0, k) may be empty.
struct RouteWanted {
  SessionId session;
  std::uint64_t request = 0;
  ModelIdentity identity;
  LayerRange range;
  bool first = false;
  std::vector<NodeId> excluded;
};
struct OpenHop {  ///< answer by open_answered
  HopRef ref;
  wire::HopAddress to;
  wire::OpenRequest request;
};
struct AskCursor {  ///< answer by cursor_answered
  HopRef ref;
  wire::HopAddress to;
};
struct RenewLease {  ///< answer by renew_answered; several of one node may share a message
  HopRef ref;
  wire::HopAddress to;
  std::uint32_t lease_ms = 0;
};
struct CloseHop {  ///< answer by close_answered
  HopRef ref;
  wire::HopAddress to;
  wire::CloseRequest request;
  bool frees_room = true;  ///< false: the hop refused the session and never held anything of it
};
struct SendIds {  ///< to the embedded node's HopTable::accept; answer by ids_answered
  HopRef ref;
  wire::Segment segment;
};
/// For the gateway: tokens come in order, each exactly once, before the session's one Finished.
struct TokenReady {
  SessionId session;
  Position position = 0;
  TokenId token = 0;
  float logprob = 0;
  bool is_eos = false;
};
enum class FinishReason : std::uint8_t { kStop, kLength, kError };
struct Finished {
  SessionId session;
  FinishReason reason = FinishReason::kStop;
  Status status;  ///< kError: kUnavailable (no route, too many failures) or what a hop refused
};
using HeadAction =
    std::variant<RouteWanted, OpenHop, AskCursor, RenewLease, CloseHop, SendIds, TokenReady, Finished>;

struct HeadStats {
  std::size_t sessions = 0;  ///< not yet closed at every hop
  std::size_t waiting_for_route = 0;
  std::uint64_t failovers = 0, stale_tokens = 0, repeated_tokens = 0;  ///< since the start
  std::uint64_t refills = 0;  ///< since the start: caches that made room for others and were filled again
};

/// The head of every session: asks for the route, opens the hops, feeds ids in prefill chunks within hop 0's
/// window, takes tokens, and cures every failure by one mechanism, resend from the receiver's cursor
/// (proto-docs/session.md). Sans-IO and single-threaded: after each event take_actions(); sleep until an
/// event or next_wakeup(). Invariants:
///  - only this class raises a session's generation;
///  - a token is taken only at the one position that the session waits for, of the current generation;
///  - a session that left by cancel() or Finished is closed at every hop it was ever opened at, or its lease
///  ended.
class HeadTable {
 public:
  /// `seed`: 32 random bytes of this start of the program; sessions' secrets are derived from it.
  HeadTable(HeadOptions options, const SessionSecret& seed);
  ~HeadTable();
  HeadTable(const HeadTable&) = delete;
  HeadTable& operator=(const HeadTable&) = delete;

  /// kInvalidArgument or kAlreadyExists; otherwise events follow.
  Status start(StartRequest request, TimePoint now);
  /// The client left, or has what it wants (a stop string): no further TokenReady or Finished.
  void cancel(const SessionId& session, TimePoint now);

  void route_found(const SessionId& session, std::uint64_t request, std::vector<wire::HopAddress> hops,
                   TimePoint now);
  /// There will never be a route (unknown model): ends the session with `status`.
  void route_failed(const SessionId& session, std::uint64_t request, const Status& status, TimePoint now);

  /// A bad status means that the node could not be reached or did not answer in time.
  void open_answered(const HopRef& ref, const StatusOr<wire::OpenReply>& reply, TimePoint now);
  void cursor_answered(const HopRef& ref, const StatusOr<wire::CursorEntry>& reply, TimePoint now);
  void renew_answered(const HopRef& ref, bool known, TimePoint now);
  void close_answered(const HopRef& ref, const Status& status, TimePoint now);
  void ids_answered(const HopRef& ref, const wire::SegmentAnswer& answer, TimePoint now);

  /// Secret of the session's current generation, for the check of a token message's MAC before token().
  std::optional<SessionSecret> secret(const SessionId& session, Generation generation) const;
  wire::TokenAnswer token(const wire::TokenMessage& message, TimePoint now);
  /// `from`: whose key signed the report; another than the hop it speaks of is ignored.
  void report(const NodeId& from, const wire::Report& report, TimePoint now);
  /// The registry says that a node is gone (lease over, left): its sessions need not wait for their
  /// deadlines.
  void node_lost(const NodeId& node, TimePoint now);

  void tick(TimePoint now);
  std::optional<TimePoint> next_wakeup() const;
  std::vector<HeadAction> take_actions();
  HeadStats stats() const;
  /// The hops of a session's current route, for logs and the demo's report.
  std::vector<wire::HopAddress> route_of(const SessionId& session) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mesh::head
