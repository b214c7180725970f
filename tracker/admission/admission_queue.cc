#include "tracker/admission/admission_queue.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace mesh::tracker {
namespace {

using std::chrono::seconds;

constexpr int kAverageOf = 5;  ///< answers, in the moving average
constexpr Duration kSoonest = seconds(1);
constexpr Duration kLatest = seconds(60);

}  // namespace

std::optional<Refusal> AdmissionQueue::enter(const Arrival& arrival, TimePoint now) {
  MESH_CHECK(!entries_.contains(arrival.ticket));
  Principal& principal = principals_[arrival.principal];
  if (options_.max_per_key > 0 && principal.running + principal.waiting.size() >= options_.max_per_key) {
    return Refusal::kKeyLimit;
  }
  const bool runs_at_once = running_ < options_.max_running && !models_[arrival.model].is_short;
  if (!runs_at_once && waiting_ >= options_.depth) {
    Principal* const loser = greediest(principal);
    if (loser == nullptr) return Refusal::kQueueFull;
    const Ticket last = *loser->waiting.rbegin();
    displaced_.push_back({last, Refusal::kDisplaced});
    leave(last, now);
  }
  Entry& entry = entries_[arrival.ticket];
  entry.arrival = arrival;
  entry.entered = now;
  start_waiting(entry);
  return std::nullopt;
}

AdmissionQueue::Principal* AdmissionQueue::greediest(const Principal& fewer) {
  Principal* most = nullptr;
  for (auto& [name, principal] : principals_) {
    if (most == nullptr || principal.waiting.size() > most->waiting.size()) most = &principal;
  }
  return most != nullptr && most->waiting.size() >= fewer.waiting.size() + 2 ? most : nullptr;
}

std::optional<TimePoint> AdmissionQueue::next_try(const Entry& entry) const {
  const Model& model = models_.at(entry.arrival.model);
  if (model.is_short && model.trying) return std::nullopt;
  if (entry.hopeless) return entry.again;
  return model.is_short ? model.again : TimePoint::min();
}

std::optional<AdmissionQueue::Ticket> AdmissionQueue::admit(TimePoint now) {
  if (waiting_ == 0 || running_ >= options_.max_running) return std::nullopt;
  Entry* next = nullptr;
  std::pair<std::uint64_t, Ticket> best;
  for (const auto& [name, principal] : principals_) {
    for (const Ticket ticket : principal.waiting) {
      Entry& entry = entries_.at(ticket);
      const auto when = next_try(entry);
      if (!when || *when > now) continue;
      const std::pair turn{principal.turn(), ticket};
      if (next == nullptr || turn < best) {
        next = &entry;
        best = turn;
      }
      break;
    }
  }
  if (next == nullptr) return std::nullopt;
  const Ticket ticket = next->arrival.ticket;
  stop_waiting(*next);
  Principal& principal = principals_.at(next->arrival.principal);
  Model& model = models_.at(next->arrival.model);
  next->waiting = false;
  next->admitted = now;
  next->turn = ++turns_;
  next->changes_before = changes_;
  principal.trying.insert(next->turn);
  ++principal.running;
  ++running_;
  if (model.is_short) model.trying = ticket;
  return ticket;
}

std::optional<Duration> AdmissionQueue::opened(Ticket ticket, TimePoint now) {
  const auto at = entries_.find(ticket);
  if (at == entries_.end() || at->second.waiting || at->second.opened) return std::nullopt;
  at->second.opened = true;
  served(at->second);
  Model& model = models_.at(at->second.arrival.model);
  if (model.trying == ticket) {
    model.trying.reset();
    model.again = now;
    end_shortage(model);
  }
  return now - at->second.entered;
}

void AdmissionQueue::found_no_room(Ticket ticket, TimePoint now) {
  const auto at = entries_.find(ticket);
  if (at == entries_.end() || at->second.waiting) return;
  Entry& entry = at->second;
  stop_running(entry);
  start_waiting(entry);

  // Room that came while it was being opened may be what it lacked.
  const TimePoint again = changes_ == entry.changes_before ? now + options_.retry : now;
  if (running_ > 0) {
    entry.alone_since.reset();
  } else if (!entry.alone_since) {
    entry.alone_since = now;
  } else if (now - *entry.alone_since >= 2 * options_.retry) {
    entry.hopeless = true;
  }
  Model& model = models_.at(entry.arrival.model);
  if (model.trying == ticket) model.trying.reset();
  if (entry.hopeless) {
    entry.again = again;
    if (running_ == 0) model.is_short = false;  // those behind it may try
    return;
  }
  model.is_short = true;
  model.again = again;
}

void AdmissionQueue::leave(Ticket ticket, TimePoint now) {
  const auto at = entries_.find(ticket);
  if (at == entries_.end()) return;
  Entry& entry = at->second;
  Model& model = models_.at(entry.arrival.model);
  if (entry.waiting) {
    stop_waiting(entry);
  } else {
    served(entry);
    stop_running(entry);
    if (entry.opened) {
      const Duration took = now - entry.admitted;
      mean_run_ = mean_run_ ? *mean_run_ + (took - *mean_run_) / kAverageOf : took;
    }
  }
  if (model.trying == ticket) {
    model.trying.reset();
    model.again = now;
  }
  entries_.erase(at);
  end_shortage(model);
}

void AdmissionQueue::room_changed() {
  ++changes_;
  for (auto& [identity, model] : models_) model.again = TimePoint::min();
  for (auto& [ticket, entry] : entries_) entry.again = TimePoint::min();
}

std::vector<AdmissionQueue::Refused> AdmissionQueue::take_refused(TimePoint now) {
  std::vector<Refused> refused = std::exchange(displaced_, {});
  if (waiting_ == 0) return refused;
  std::vector<Ticket> over;
  for (const auto& [ticket, entry] : entries_) {
    if (entry.waiting && now - entry.entered >= options_.longest_wait) over.push_back(ticket);
  }
  for (const Ticket ticket : over) {
    leave(ticket, now);
    refused.push_back({ticket, Refusal::kWaitOver});
  }
  return refused;
}

std::optional<TimePoint> AdmissionQueue::next_wakeup() const {
  std::optional<TimePoint> first;
  const auto earlier = [&](TimePoint when) { first = first ? std::min(*first, when) : when; };
  if (waiting_ == 0) return first;
  for (const auto& [ticket, entry] : entries_) {
    if (!entry.waiting) continue;
    earlier(entry.entered + options_.longest_wait);
    if (running_ >= options_.max_running) break;
    if (const auto when = next_try(entry)) earlier(*when);
  }
  return first;
}

Duration AdmissionQueue::retry_after(const std::string& principal) const {
  if (!mean_run_) return kSoonest;
  const auto at = principals_.find(principal);
  const std::size_t own = at == principals_.end() ? 0 : at->second.running + at->second.waiting.size();
  const bool limited = options_.max_per_key > 0 && own >= options_.max_per_key;
  const double ahead = limited ? 1 : static_cast<double>(waiting_ + 1);
  const double at_once = static_cast<double>(std::max<std::size_t>(1, limited ? own : running_));
  return std::clamp(std::chrono::duration_cast<Duration>(*mean_run_ * (ahead / at_once)), kSoonest, kLatest);
}

bool AdmissionQueue::is_short_of_room(const ModelIdentity& model) const {
  const auto at = models_.find(model);
  return at != models_.end() && at->second.is_short;
}

void AdmissionQueue::start_waiting(Entry& entry) {
  entry.waiting = true;
  principals_.at(entry.arrival.principal).waiting.insert(entry.arrival.ticket);
  ++models_.at(entry.arrival.model).waiting;
  ++waiting_;
}

void AdmissionQueue::stop_waiting(const Entry& entry) {
  principals_.at(entry.arrival.principal).waiting.erase(entry.arrival.ticket);
  --models_.at(entry.arrival.model).waiting;
  --waiting_;
}

void AdmissionQueue::stop_running(const Entry& entry) {
  Principal& principal = principals_.at(entry.arrival.principal);
  principal.trying.erase(entry.turn);
  --principal.running;
  --running_;
}

void AdmissionQueue::served(const Entry& entry) {
  Principal& principal = principals_.at(entry.arrival.principal);
  principal.trying.erase(entry.turn);
  principal.served = std::max(principal.served, entry.turn);
}

void AdmissionQueue::end_shortage(Model& model) {
  if (model.waiting == 0 && !model.trying) model.is_short = false;
}

}  // namespace mesh::tracker
