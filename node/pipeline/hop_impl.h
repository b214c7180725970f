#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "node/pipeline/cache_room.h"
#include "node/pipeline/due_set.h"
#include "node/pipeline/hop_session.h"
#include "node/pipeline/hop_table.h"
#include "node/pipeline/prefix_cache.h"
#include "node/pipeline/replay_pace.h"

namespace mesh::pipeline {

/// One lane to one next hop's program.
struct Link {
  NodeId node;
  std::set<wire::HopKey> waiting;  ///< sessions with something to send on it
  std::optional<wire::HopKey> last_served;
  std::size_t in_flight = 0;
  TimePoint not_before{};
  Duration backoff{};
  std::optional<TimePoint> replay_held;  ///< until then only replays wait, and may not go
};
using LinkKey = std::pair<std::string, wire::Lane>;

struct SentSegment {
  wire::HopKey hop;  ///< ours
  Generation generation;
  Seq seq;
};
struct SentFrame {
  LinkKey link;
  std::vector<SentSegment> segments;
  TimePoint sent{};
  bool replay = false;
};
struct SentToken {
  wire::HopKey hop;
  Generation generation;
  Position position = 0;
};

class HopTable::Impl {
 public:
  Impl(HopOptions options, const HopFaults& faults)
      : options_(options),
        faults_(faults),
        room_({.device_bytes = options.cache_bytes, .host_bytes = options.spill_bytes}, faults),
        prefixes_(options.prefix_bytes, faults) {}

  // hop_table.cc: openings, arrivals, ends
  wire::OpenReply open(const wire::OpenRequest& request, const std::optional<ShardView>& shard,
                       TimePoint now);
  void close(const wire::CloseRequest& request, TimePoint now);
  wire::CursorsReply cursors(const wire::CursorsRequest& request) const;
  wire::RenewReply renew(const wire::RenewRequest& request, TimePoint now);
  wire::SegmentAnswer accept(wire::Segment segment, TimePoint now);
  std::optional<SessionKeys> keys(const wire::HopKey& hop) const;
  void tick(TimePoint now);
  std::optional<TimePoint> next_wakeup() const;

  // hop_steps.cc
  std::optional<StepWork> next_step(TimePoint now);
  std::optional<TimePoint> ahead_from() const;
  void step_done(StepOutput output, TimePoint now);

  // hop_links.cc
  std::optional<OutFrame> next_frame(TimePoint now);
  void frame_answered(std::uint64_t id, const std::vector<wire::SegmentAnswer>& answers, TimePoint now);
  void frame_failed(std::uint64_t id, const Status& status, TimePoint now);
  std::optional<OutAsk> next_ask(TimePoint now);
  void ask_answered(std::uint64_t id, const wire::CursorsReply& reply, TimePoint now);
  void ask_failed(std::uint64_t id, TimePoint now);

  // hop_messages.cc
  std::optional<OutTokens> next_tokens(TimePoint now);
  void tokens_answered(std::uint64_t id, const std::vector<wire::TokenAnswer>& answers, TimePoint now);
  void tokens_failed(std::uint64_t id, TimePoint now);
  std::optional<OutReport> next_report(TimePoint now);
  void report_answered(std::uint64_t id);
  void report_failed(std::uint64_t id, TimePoint now);

  // hop_prefix.cc
  std::vector<CacheOrder> take_orders() { return std::exchange(orders_, {}); }
  std::uint64_t shrink_prefixes(std::uint64_t bytes);

  // hop_room.cc
  void set_cache_bytes(std::uint64_t bytes) { room_.set_device_bytes(bytes); }
  std::uint64_t promised_bytes() const {
    return std::max(room_.on_device() + prefixes_.bytes(), room_.promised());
  }
  std::uint64_t wanted_bytes() const {
    return std::max(room_.on_device() + prefixes_.bytes() + room_.waiting_bytes(), room_.promised());
  }
  void withdraw(const wire::HopKey& hop);
  bool waits_for_room() const { return room_.first_waiting().has_value(); }
  void cache_moved(const CacheMoved& moved);
  void prefix_lost(PrefixBlockId id) { prefixes_.lose(id); }
  HopStats stats() const;
  bool draining = false;

 private:
  using Sessions = std::map<wire::HopKey, HopSession>;

  HopSession* find(const wire::HopKey& hop);
  const HopSession* find(const wire::HopKey& hop) const;
  /// The session if it is still of that generation.
  HopSession* find(const wire::HopKey& hop, Generation generation);
  std::optional<wire::OpenReply> refuse(const wire::OpenRequest& request,
                                        const std::optional<ShardView>& shard);
  HopSession& create(const wire::OpenRequest& request, const ShardView& shard, TimePoint now);
  void reopen(HopSession& session, const wire::OpenRequest& request);
  void begin_emitting(HopSession& session, TimePoint now);
  void end(Sessions::iterator at);
  void release(CacheId cache);
  std::optional<std::string> no_room(const wire::OpenRequest& request, const ShardView& shard) const;
  void fit_prefixes();
  void let_in(TimePoint now);
  void make_leave(const CacheRoom::Leaving& leaving, TimePoint now);
  void bring_in(HopSession& session, TimePoint now);
  void follow_moves(CacheId cache);
  void arrived(CacheId cache);
  void never_fits(HopSession& session, TimePoint now);
  HopSession& owner(CacheId cache) { return sessions_.at(owners_.at(cache)); }
  std::uint64_t host_bytes(const HopSession& session) const;
  void begin_cache(HopSession& session);
  void keep_prefix(HopSession& session, const wire::Segment& done);
  void order_drops();

  void update_waiting(HopSession& session);
  void trim(HopSession& session, Position start);
  void finish_rows(HopSession& session, SegmentOutput output, TimePoint now);
  void keep(HopSession& session, wire::Segment output);
  void enforce_kept_budget(TimePoint now);
  std::vector<wire::HopKey> choose_segments(wire::Lane lane) const;
  void expire_front(HopSession& session, TimePoint now);

  void update_links(HopSession& session, TimePoint now);
  void leave_links(const HopSession& session);
  void fill(Link& link, OutFrame& frame, SentFrame& sent, std::size_t most_segments, TimePoint now);
  void frame_back(const SentFrame& sent, TimePoint now);
  void answered(HopSession& session, const SentSegment& sent, const wire::SegmentAnswer& answer,
                TimePoint now);
  void stop_sending(HopSession& session, wire::ReportCode code, std::string message, TimePoint now);
  void note_failure(HopSession& session, const std::string& message, TimePoint now);

  void report(HopSession& session, wire::ReportCode code, std::string message, TimePoint now);
  void token_due(HopSession& session, TimePoint when);
  void update_report_due(HopSession& session, TimePoint when);
  Duration grown(Duration backoff) const;

  const HopOptions options_;
  const HopFaults faults_;
  Sessions sessions_;
  std::map<SessionId, std::pair<Generation, TimePoint>> tombstones_;
  std::map<CacheId, wire::HopKey> owners_;
  CacheRoom room_;
  std::optional<TimePoint> turn_ends_;   ///< while somebody waits for it
  std::uint64_t moves_ = 0, moved_ = 0;  ///< SpillCache and RestoreCache that were ordered, that are done
  std::deque<std::pair<std::uint64_t, CacheId>> following_;  ///< begin when so many are done
  PrefixCache prefixes_;
  std::vector<CacheOrder> orders_;
  std::uint64_t inbound_reserved_ = 0, kept_ = 0;
  std::uint64_t last_id_ = 0;

  std::array<std::map<std::uint64_t, wire::HopKey>, 2>
      waiting_;  ///< by lane: sessions whose next segment may run
  wire::Lane last_lane_ = wire::Lane::kBulk;
  struct RunningStep {
    std::vector<std::pair<wire::HopKey, CacheId>> members;
    TimePoint from{};         ///< when it began, or the last of those before it ended
    bool has_layers = false;  ///< else it embeds alone, which says nothing of other steps
    wire::Lane lane = wire::Lane::kDecode;
    std::uint32_t prefill_rows = 0;
  };
  std::map<std::uint64_t, RunningStep> steps_;
  std::array<Duration, 2> step_took_{};  ///< by lane, the last one with layers; 0: none yet

  std::map<LinkKey, Link> links_;
  std::map<std::string, ReplayPace> paces_;  ///< by URL, both lanes together
  std::optional<LinkKey> last_link_;
  std::map<std::uint64_t, SentFrame> frames_;
  std::map<std::uint64_t, std::vector<SentToken>> token_messages_;
  std::map<std::uint64_t, std::pair<wire::HopKey, wire::Report>> reports_;
  std::map<std::uint64_t, std::vector<std::pair<wire::HopKey, Generation>>> asks_;
  std::map<std::string, Duration> head_backoff_;
  DueSet<wire::HopKey> leases_, asks_due_, tokens_due_, reports_due_;
  HopStats counts_;
};

}  // namespace mesh::pipeline
