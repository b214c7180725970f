#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "tracker/gateway/backend.h"

namespace mesh::tracker {

/// Events of one session on their way from the head to the request's thread. The head pushes;
/// it never waits here: an answer has at most max_tokens + 1 events.
class AnswerQueue {
 public:
  void push(gateway::Event event);
  /// As gateway::Answer::next().
  std::optional<gateway::Event> next(TimePoint deadline);
  /// next() returns nothing from now on.
  void interrupt();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<const gateway::Event>> events_;
  bool interrupted_ = false;
};

}  // namespace mesh::tracker
