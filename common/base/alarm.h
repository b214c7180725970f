#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "common/base/clock.h"

namespace mesh {

/// A thread that calls `ring` once the time last set has come; then it waits to be set again. `ring` may set
/// it.
class Alarm {
 public:
  explicit Alarm(std::function<void()> ring);
  ~Alarm() { stop(); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  /// Replaces the time set before.
  void set(TimePoint at);
  /// Returns when no ring is under way; later ones do not come. Not to be called by `ring`.
  void stop();

 private:
  void loop();

  const std::function<void()> ring_;
  std::mutex mutex_;
  std::condition_variable changed_;
  TimePoint at_ = TimePoint::max();
  TimePoint sleeps_until_ =
      TimePoint::max();  ///< a later time needs no wake-up: the thread looks again by itself
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace mesh
