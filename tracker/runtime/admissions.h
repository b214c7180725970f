#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tracker/admission/admission_queue.h"
#include "tracker/admission/session_room.h"
#include "tracker/gateway/backend.h"
#include "tracker/runtime/answer_queue.h"

namespace mesh::tracker {

/// Hears of requests on their way in, for metrics. Called from several threads.
class AdmissionObserver {
 public:
  virtual ~AdmissionObserver() = default;
  /// All hops of one were opened, `waited` after it arrived.
  virtual void on_opened(Duration waited) = 0;
  /// One was refused: queue_full, key_limit, displaced, wait_over or never_fits.
  virtual void on_refused(std::string_view reason) = 0;
};

/// The queue of docs/admission.md with what its tickets stand for: each request and its answer. One thread.
class Admissions {
 public:
  using Ticket = AdmissionQueue::Ticket;
  /// A session to begin for a request; the next try of a request has another session.
  struct Start {
    SessionId session;
    const gateway::Ask* ask = nullptr;  ///< until the session ends
  };

  /// `observer` may be null; else it outlives this.
  Admissions(const AdmissionOptions& options, AdmissionObserver* observer);

  /// Takes a place, or ends the answer.
  void enter(Ticket ticket, gateway::Ask ask, std::shared_ptr<AnswerQueue> answer, TimePoint now);
  /// Ends those that wait no longer; then the next to begin, until none.
  std::optional<Start> next(TimePoint now);
  void opened(const SessionId& session, TimePoint now);
  void deliver(const SessionId& session, const gateway::Token& token);
  /// The request of a session that may wait for room again: nothing was delivered. Else null.
  const gateway::Ask* not_begun(const SessionId& session) const;
  /// The session ended for want of room; its request waits again.
  void found_no_room(const SessionId& session, const Status& why, TimePoint now);
  void room_changed() { queue_.room_changed(); }
  void end(const SessionId& session, const gateway::End& end, TimePoint now);
  /// The client left. The session to cancel, if one runs.
  std::optional<SessionId> leave(Ticket ticket, TimePoint now);
  void end_waiting(const Status& status, TimePoint now);
  void end_all(const Status& status);

  std::optional<TimePoint> next_wakeup() const { return queue_.next_wakeup(); }
  std::size_t running() const { return queue_.running(); }
  std::size_t waiting() const { return queue_.waiting(); }

 private:
  struct Request {
    gateway::Ask ask;
    std::shared_ptr<AnswerQueue> answer;
    std::optional<SessionId> session;
    bool delivered = false;
    Status lacked;  ///< at its last try
  };
  struct Running {
    Ticket ticket = 0;
    bool opened = false;
  };
  Status why(Refusal refusal, const Request& request) const;
  void refuse(Refusal refusal, const Request& request);

  const AdmissionOptions options_;
  AdmissionObserver* const observer_;
  AdmissionQueue queue_;
  std::map<Ticket, Request> requests_;
  std::map<SessionId, Running> running_;
};

/// 400 "insufficient_memory", with the numbers and what helps. `place`: what the node of `no` is called.
Status insufficient_memory(const gateway::Ask& ask, const NoFit& no, std::string_view place);

}  // namespace mesh::tracker
