#include "tracker/runtime/answer_queue.h"

namespace mesh::tracker {

void AnswerQueue::push(gateway::Event event) {
  {
    const std::lock_guard lock(mutex_);
    if (interrupted_) return;
    events_.push_back(std::make_shared<const gateway::Event>(std::move(event)));
  }
  changed_.notify_one();
}

std::optional<gateway::Event> AnswerQueue::next(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return interrupted_ || !events_.empty(); });
  if (interrupted_ || events_.empty()) return std::nullopt;
  const std::shared_ptr<const gateway::Event> event = events_.front();
  events_.pop_front();
  return *event;
}

void AnswerQueue::interrupt() {
  {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    events_.clear();
  }
  changed_.notify_all();
}

}  // namespace mesh::tracker
