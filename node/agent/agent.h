#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/wire/control.h"

namespace mesh {

/// What a node says of itself when it joins; constant for a run.
struct AgentOptions {
  wire::Join self;  ///< stamp.start set; number, shards and highest_epoch are filled in by the core
  NodeId node;
  Epoch highest_epoch;        ///< as stored by the last run
  std::uint64_t jitter_seed;  ///< for back-off; the same seed gives the same events
};

/// The outcome of checking one directive's signature and syntax; the core checks everything else.
struct CheckedDirective {
  wire::Directive directive;
  Status signature;  ///< OK, or why its signature or text is wrong (then `directive` may be empty)
};

// Effects of the core, in the order in which they are to be carried out.
struct SendJoin {
  wire::Join join;
};
struct SendHeartbeat {
  wire::Heartbeat heartbeat;
};
struct SendLeave {
  wire::Leave leave;
};
/// Store before anything that follows: a later start must not accept an older epoch.
struct StoreEpoch {
  Epoch epoch;
};
struct BeginLoad {
  wire::DirectiveId id;
  wire::CatalogueEntry model;
  LayerRange layers;
};
/// Drain the shard (no new sessions; running ones may end within the drain time), then free it.
struct BeginDrop {
  wire::DirectiveId id;
  ModelIdentity model;
  LayerRange layers;
};
/// One line for the owner of the node.
struct Say {
  enum class Level { kInfo, kWarning, kError } level = Level::kInfo;
  std::string text;
};
/// The agent cannot go on (no common wire version, wrong join key, another tracker's key): the program ends
/// with it.
struct GiveUp {
  Status why;
};
using AgentEffect =
    std::variant<SendJoin, SendHeartbeat, SendLeave, StoreEpoch, BeginLoad, BeginDrop, Say, GiveUp>;

enum class AgentState {
  kApart,    ///< not joined; the next try is due at next_wakeup()
  kJoining,  ///< a join is on its way
  kMember,   ///< joined, lease valid
  kLapsed,   ///< joined, lease ended: heartbeats go on, no new sessions or directives
  kLeft,     ///< left or gave up; nothing follows
};

/// What a call to the tracker ended with, when not with a reply.
struct CallFailure {
  Status status;             ///< transport error, or the refusal as a status
  wire::ControlError error;  ///< filled in when the tracker refused; `code` empty otherwise
};

/// The agent as a pure state machine: takes events with their time, gives effects as values. No threads, no
/// sockets, no keys. README.md has the table states × events. At most one call to the tracker
/// is on its way.
class AgentCore {
 public:
  AgentCore(AgentOptions options, TimePoint now);

  /// Call at next_wakeup() or later; sends what is due.
  void on_time(TimePoint now);
  void on_join_reply(TimePoint now, const wire::JoinReply& reply);
  void on_heartbeat_reply(TimePoint now, const wire::HeartbeatReply& reply,
                          const std::vector<CheckedDirective>& directives);
  void on_call_failed(TimePoint now, const CallFailure& failure);

  /// What the node holds, loads or drains now. A load in progress is among them.
  void set_shards(std::vector<wire::ShardStatus> shards);
  void set_figures(wire::NodeLoad load, std::vector<wire::StageTime> stages,
                   std::vector<wire::LinkFigure> links);
  /// The directive that BeginLoad or BeginDrop named ended. set_shards() comes first.
  void on_directive_ended(TimePoint now, const wire::DirectiveId& id, const Status& result);
  /// The owner stops the node: heartbeats say `draining`, new directives are refused.
  void begin_drain(TimePoint now);
  /// The drain is over: says goodbye if it was a member. State is kLeft.
  void leave(TimePoint now);

  std::vector<AgentEffect> take_effects();
  TimePoint next_wakeup() const;

  AgentState state() const { return state_; }
  /// False when apart, lapsed or draining: openings of new sessions are then refused.
  bool accepts_new_work(TimePoint now) const;
  const std::vector<wire::CatalogueEntry>& catalogue() const { return catalogue_; }
  Epoch highest_epoch() const { return highest_epoch_; }

 private:
  struct Pending {
    wire::Directive directive;
    TimePoint expires;
  };
  enum class Call { kNone, kJoin, kHeartbeat };

  void send_join(TimePoint now);
  void send_heartbeat(TimePoint now);
  void rejoin_now(TimePoint now, const std::string& why);
  void back_off(TimePoint now);
  void note_epoch(Epoch epoch);
  void note_lapse(TimePoint now);
  void take_directive(TimePoint now, const CheckedDirective& checked);
  /// Why it must be refused, or OK.
  Status verdict(const wire::Directive& directive) const;
  Status verdict_load(const wire::Directive& directive, const wire::CatalogueEntry& model) const;
  void begin_next(TimePoint now);
  /// No shard has exactly the layers of a DROP: done if they are not held at all.
  void finish_missing_drop(const wire::Directive& directive);
  void finish(const wire::DirectiveId& id, wire::DirectiveState state, const std::string& message);
  const wire::CatalogueEntry* find_model(const ModelIdentity& model) const;
  void say(Say::Level level, std::string text);
  double jitter();

  AgentOptions options_;
  AgentState state_ = AgentState::kApart;
  Call in_flight_ = Call::kNone;
  TimePoint call_sent_;
  TimePoint next_call_;
  std::uint32_t failures_ = 0;
  std::string said_;  ///< the last trouble that a warning named
  std::uint64_t random_;

  std::uint64_t number_ = 0;  ///< of the last stamp given
  std::uint64_t lease_ = 0;
  std::uint64_t last_reply_ = 0;
  TimePoint lease_until_;
  Duration heartbeat_;
  Duration lease_time_;
  Epoch highest_epoch_;
  bool draining_ = false;

  std::vector<wire::CatalogueEntry> catalogue_;
  std::vector<wire::ShardStatus> shards_;
  wire::NodeLoad load_;
  std::vector<wire::StageTime> stages_;
  std::vector<wire::LinkFigure> links_;

  std::deque<Pending> waiting_;
  std::optional<Pending> active_;
  /// States of directives still to be acknowledged, by id; final ones leave when a reply has covered them.
  std::map<wire::DirectiveId, wire::DirectiveStatus> unacknowledged_;
  /// Final ids that the heartbeat on its way carries.
  std::vector<wire::DirectiveId> carried_;
  /// Past directives, oldest first, so that a repeated one is answered and not done again.
  std::deque<wire::DirectiveStatus> past_;
  std::vector<AgentEffect> effects_;
};

}  // namespace mesh
