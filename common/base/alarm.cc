#include "common/base/alarm.h"

#include <algorithm>
#include <utility>

namespace mesh {
namespace {
/// wait_until() of the farthest time point overflows in some standard libraries.
constexpr Duration kLongest = std::chrono::hours(1);
}  // namespace

Alarm::Alarm(std::function<void()> ring) : ring_(std::move(ring)), thread_([this] { loop(); }) {}

void Alarm::set(TimePoint at) {
  {
    const std::lock_guard lock(mutex_);
    at_ = at;
    if (at >= sleeps_until_) return;
  }
  changed_.notify_one();
}

void Alarm::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Alarm::loop() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const TimePoint now = std::chrono::steady_clock::now();
    if (at_ <= now) {
      at_ = TimePoint::max();
      lock.unlock();
      ring_();
      lock.lock();
      continue;
    }
    sleeps_until_ = std::min(at_, now + kLongest);
    changed_.wait_until(lock, sleeps_until_);
    sleeps_until_ = TimePoint::min();  // awake: set() need not wake
  }
}

}  // namespace mesh
