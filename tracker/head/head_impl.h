#pragma once

#include <map>

#include "node/pipeline/due_set.h"
#include "tracker/head/head_session.h"

namespace mesh::head {

class HeadTable::Impl {
 public:
  Impl(HeadOptions options, const SessionSecret& seed) : options_(std::move(options)), seed_(seed) {}

  // head_table.cc
  Status start(StartRequest request, TimePoint now);
  void cancel(const SessionId& session, TimePoint now);
  void renew_answered(const HopRef& ref, bool known, TimePoint now);
  void close_answered(const HopRef& ref, const Status& status, TimePoint now);
  std::optional<SessionSecret> secret(const SessionId& session, Generation generation) const;
  void tick(TimePoint now);
  std::optional<TimePoint> next_wakeup() const { return due_.earliest(); }
  std::vector<HeadAction> take_actions() { return std::exchange(actions_, {}); }
  HeadStats stats() const;
  std::vector<wire::HopAddress> route_of(const SessionId& session) const;

  // head_waves.cc
  void open_answered(const HopRef& ref, const StatusOr<wire::OpenReply>& reply, TimePoint now);
  void cursor_answered(const HopRef& ref, const StatusOr<wire::CursorEntry>& reply, TimePoint now);

  // head_recovery.cc
  void route_found(const SessionId& session, std::uint64_t request, std::vector<wire::HopAddress> hops,
                   TimePoint now);
  void route_failed(const SessionId& session, std::uint64_t request, const Status& status, TimePoint now);
  void report(const NodeId& from, const wire::Report& report, TimePoint now);
  void node_lost(const NodeId& node, TimePoint now);

  // head_feed.cc
  void ids_answered(const HopRef& ref, const wire::SegmentAnswer& answer, TimePoint now);
  wire::TokenAnswer token(const wire::TokenMessage& message, TimePoint now);

 private:
  HeadSession* find(const SessionId& session);
  HeadSession* find(const HopRef& ref);  ///< of that generation, index inside the route, not closing
  SessionSecret derive_secret(const SessionId& session, Generation generation) const;
  void fail(HeadSession& session, const Status& status, TimePoint now);
  void finish(HeadSession& session, FinishReason reason, const Status& status, TimePoint now);
  void close_everywhere(HeadSession& session, TimePoint now);
  void close_at(HeadSession& session, const HopState& hop, std::size_t index, TimePoint now);
  void renew(HeadSession& session, TimePoint now);
  void retry_closings(HeadSession& session, TimePoint now);
  void reschedule(HeadSession& session);
  void on_time(HeadSession& session, TimePoint now);

  void begin_wave(HeadSession& session, Wave wave, TimePoint now);
  void ask(HeadSession& session, std::size_t index, TimePoint now);
  void attempt_failed(HeadSession& session, std::size_t index, const Status& status, TimePoint now);
  void wave_time(HeadSession& session, TimePoint now);
  void wave_step(HeadSession& session, TimePoint now);
  void judge_probe(HeadSession& session, TimePoint now);
  wire::OpenRequest opening(const HeadSession& session, std::size_t index) const;

  void lose(HeadSession& session, std::size_t index, const Status& why, TimePoint now);
  void want_routes(HeadSession& session, TimePoint now);
  void ask_routes(HeadSession& session, TimePoint now);
  void replace_lost(HeadSession& session, TimePoint now);
  void fence(HeadSession& session, std::string_view why, TimePoint now);
  void refill(HeadSession& session, std::string_view why, TimePoint now);
  void open_anew(HeadSession& session, TimePoint now);
  void resume(HeadSession& session, TimePoint now);

  void run(HeadSession& session, TimePoint now);
  void feed_from(HeadSession& session, Position from);
  void pump(HeadSession& session, TimePoint now);
  Duration step_allowance(const HeadSession& session) const;

  const HeadOptions options_;
  const SessionSecret seed_;
  std::map<SessionId, HeadSession> sessions_;
  pipeline::DueSet<SessionId> due_;
  std::vector<HeadAction> actions_;
  std::map<ModelIdentity, Duration> decode_time_;  ///< moving average of one decode step
  std::uint64_t last_request_ = 0;
  std::uint32_t last_closing_ = 0;
  HeadStats counts_;
};

}  // namespace mesh::head
