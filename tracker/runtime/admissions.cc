#include "tracker/runtime/admissions.h"

#include <utility>
#include <vector>

#include "common/config/units.h"
#include "common/identity/random.h"
#include "common/json/error_fields.h"
#include "common/net/error_response.h"

namespace mesh::tracker {
namespace {

std::string_view name_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kQueueFull:
      return "queue_full";
    case Refusal::kKeyLimit:
      return "key_limit";
    case Refusal::kDisplaced:
      return "displaced";
    case Refusal::kWaitOver:
      return "wait_over";
  }
  return "other";
}

gateway::End failed(Status status) {
  return {std::move(status), gateway::EndReason::kStop};
}

}  // namespace

Admissions::Admissions(const AdmissionOptions& options, AdmissionObserver* observer)
    : options_(options), observer_(observer), queue_(options) {}

void Admissions::enter(Ticket ticket, gateway::Ask ask, std::shared_ptr<AnswerQueue> answer, TimePoint now) {
  const auto refusal = queue_.enter({ticket, ask.principal, ask.identity}, now);
  Request request{std::move(ask), std::move(answer), std::nullopt, false, {}};
  if (refusal) return refuse(*refusal, request);
  requests_.emplace(ticket, std::move(request));
}

std::optional<Admissions::Start> Admissions::next(TimePoint now) {
  for (const AdmissionQueue::Refused& refused : queue_.take_refused(now)) {
    const auto at = requests_.find(refused.ticket);
    refuse(refused.reason, at->second);
    requests_.erase(at);
  }
  const auto ticket = queue_.admit(now);
  if (!ticket) return std::nullopt;
  Request& request = requests_.at(*ticket);
  request.session = random_id<SessionId>();
  running_[*request.session] = {*ticket, false};
  return Start{*request.session, &request.ask};
}

void Admissions::opened(const SessionId& session, TimePoint now) {
  const auto at = running_.find(session);
  if (at == running_.end() || at->second.opened) return;
  at->second.opened = true;
  const auto waited = queue_.opened(at->second.ticket, now);
  if (waited && observer_ != nullptr) observer_->on_opened(*waited);
}

void Admissions::deliver(const SessionId& session, const gateway::Token& token) {
  const auto at = running_.find(session);
  if (at == running_.end()) return;
  Request& request = requests_.at(at->second.ticket);
  request.delivered = true;
  request.answer->push(token);
}

const gateway::Ask* Admissions::not_begun(const SessionId& session) const {
  const auto at = running_.find(session);
  if (at == running_.end()) return nullptr;
  const Request& request = requests_.at(at->second.ticket);
  return request.delivered ? nullptr : &request.ask;
}

void Admissions::found_no_room(const SessionId& session, const Status& why, TimePoint now) {
  const auto at = running_.find(session);
  if (at == running_.end()) return;
  Request& request = requests_.at(at->second.ticket);
  request.session.reset();
  request.lacked = why;
  queue_.found_no_room(at->second.ticket, now);
  running_.erase(at);
}

void Admissions::end(const SessionId& session, const gateway::End& end, TimePoint now) {
  const auto at = running_.find(session);
  if (at == running_.end()) return;
  const Ticket ticket = at->second.ticket;
  running_.erase(at);
  queue_.leave(ticket, now);
  requests_.at(ticket).answer->push(end);
  requests_.erase(ticket);
}

std::optional<SessionId> Admissions::leave(Ticket ticket, TimePoint now) {
  const auto at = requests_.find(ticket);
  if (at == requests_.end()) return std::nullopt;
  const std::optional<SessionId> session = at->second.session;
  if (session) running_.erase(*session);
  requests_.erase(at);
  queue_.leave(ticket, now);
  return session;
}

void Admissions::end_waiting(const Status& status, TimePoint now) {
  std::vector<Ticket> waiting;
  for (const auto& [ticket, request] : requests_) {
    if (!request.session) waiting.push_back(ticket);
  }
  for (const Ticket ticket : waiting) {
    requests_.at(ticket).answer->push(failed(status));
    leave(ticket, now);
  }
}

void Admissions::end_all(const Status& status) {
  for (const auto& [ticket, request] : requests_) request.answer->push(failed(status));
  requests_.clear();
  running_.clear();
}

void Admissions::refuse(Refusal refusal, const Request& request) {
  if (observer_ != nullptr) observer_->on_refused(name_of(refusal));
  request.answer->push(
      failed(net::with_retry_after(why(refusal, request), queue_.retry_after(request.ask.principal))));
}

Status Admissions::why(Refusal refusal, const Request& request) const {
  switch (refusal) {
    case Refusal::kQueueFull:
      return error(
          StatusCode::kResourceExhausted,
          "{} answers are running and {} requests wait, as many as this tracker lets wait: try again "
          "later",
          running(), waiting());
    case Refusal::kKeyLimit:
      return error(
          StatusCode::kResourceExhausted,
          "{} answers of this API key are running or waiting, as many as one key may have: try again "
          "when one has ended",
          options_.max_per_key);
    case Refusal::kDisplaced:
      return error(StatusCode::kResourceExhausted,
                   "the queue is full, and a request of a key with fewer waiting took the place of this one: "
                   "try again later");
    case Refusal::kWaitOver:
      break;
  }
  return error(StatusCode::kResourceExhausted, "waited {} for its turn, which did not come: {}",
               config::format_duration(options_.longest_wait),
               request.lacked.ok() ? fmt::format("{} answers are running", running())
                                   : std::string(message_of(request.lacked)));
}

Status insufficient_memory(const gateway::Ask& ask, const NoFit& no, std::string_view place) {
  const std::string fix =
      no.most_tokens > ask.prompt.size()
          ? fmt::format("set max_tokens to {} or less", no.most_tokens - ask.prompt.size())
          : fmt::format("shorten the prompt to less than {}", no.most_tokens);
  return json::with_code(
      json::with_param(
          error(
              StatusCode::kInvalidArgument,
              "insufficient memory: the caches of {} tokens (prompt {}, answer {}) need {} bytes for layers "
              "{}, free are at most {} at {}; {}, or give nodes more memory (--memory)",
              ask.prompt.size() + ask.max_tokens, ask.prompt.size(), ask.max_tokens, no.needed_bytes,
              to_string(no.layers), no.free_bytes, place, fix),
          "max_tokens"),
      "insufficient_memory");
}

}  // namespace mesh::tracker
