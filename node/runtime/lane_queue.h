#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/arrivals.h"

namespace mesh {

/// FIFO between the strand and a lane's threads, with a fixed capacity. The thread that was busy last is
/// called first, so that a session's frames go over one connection at the interval in which they come; while
/// that is steady, the thread polls for the next instead of being woken. After close() pushes fail and pops
/// drain what is left.
template <class T>
class LaneQueue {
 public:
  /// One thread's; it lives as long as any other thread may push.
  struct Turn {
    std::condition_variable wake;
    std::atomic<bool> called = false;
    bool polls = false;
  };

  explicit LaneQueue(std::size_t capacity, std::size_t cores = std::thread::hardware_concurrency())
      : capacity_(capacity), arrivals_(cores) {}

  /// False when full or closed; `item` is then untouched.
  bool try_push(T& item) {
    Turn* wake = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
      arrivals_.arrived(clock_.now());
      if (!idle_.empty()) {
        Turn* const last = idle_.back();
        idle_.pop_back();
        last->called = true;
        if (!last->polls) wake = last;
      }
    }
    if (wake != nullptr) wake->wake.notify_one();
    return true;
  }

  /// Waits for an item; nothing when closed and empty. `mine`: the calling thread's own.
  std::optional<T> pop(Turn& mine) {
    std::unique_lock lock(mutex_);
    while (items_.empty()) {
      if (closed_) return std::nullopt;
      mine.called = false;
      idle_.push_back(&mine);
      wait(lock, mine);
    }
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (Turn* const turn : std::exchange(idle_, {})) {
      turn->called = true;
      turn->wake.notify_one();
    }
  }
  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  /// Threads that wait, not called yet.
  std::size_t idle() const {
    const std::lock_guard lock(mutex_);
    return idle_.size();
  }

 private:
  void wait(std::unique_lock<std::mutex>& lock, Turn& mine) {
    const auto called = [&mine] { return mine.called.load(); };
    if (const auto window = arrivals_.next(clock_.now())) {
      if (mine.wake.wait_until(lock, window->from, called)) return;
      if (idle_.back() == &mine) {
        mine.polls = true;
        lock.unlock();
        const auto end = ArrivalClock::poll(window->until, called);
        lock.lock();
        mine.polls = false;
        arrivals_.polled(end, clock_.now());
      }
    }
    mine.wake.wait(lock, called);
  }

  const std::size_t capacity_;
  const SteadyClock clock_;
  mutable std::mutex mutex_;
  std::deque<T> items_;
  std::vector<Turn*> idle_;  ///< that wait, not called; the last one idle at the end
  ArrivalClock arrivals_;
  bool closed_ = false;
};

}  // namespace mesh
