#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/clock.h"

namespace mesh {

/// When the next of a row of things should come, while they come at steady intervals as the frames of decode
/// steps do. To be woken costs 40 to 100 microseconds under a hypervisor, so who waits sleeps until shortly
/// before, polls around the time itself, and sleeps again when it is past. Nobody polls on machines of few
/// cores, nor, for a while, after somebody else took the core meanwhile. Not thread-safe.
class ArrivalClock {
 public:
  /// Of a machine on which others may need all cores there are no polls.
  static constexpr std::size_t kFewestCores = 4;
  /// Intervals for which it is worth while: a shorter one would be polled through, and longer ones vary.
  static constexpr Duration kShortest = std::chrono::milliseconds(1);
  static constexpr Duration kLongest = std::chrono::milliseconds(50);
  static constexpr Duration kFirstRest = std::chrono::seconds(1);
  static constexpr Duration kLongestRest = std::chrono::seconds(64);
  /// A thread that gave way for as long had to wait for another.
  static constexpr Duration kCrowded = std::chrono::microseconds(200);

  enum class Poll { kCame, kLate, kCrowded };
  struct Window {
    TimePoint from;
    TimePoint until;
  };

  explicit ArrivalClock(std::size_t cores = std::thread::hardware_concurrency())
      : enough_cores_(cores >= kFewestCores) {}

  /// To either side of when something is due after `interval`, how long to poll for it: a sleeping thread is
  /// woken up to 0.1 ms late.
  static Duration slack(Duration interval) {
    return std::clamp<Duration>(interval / 8, std::chrono::microseconds(250), std::chrono::milliseconds(1));
  }

  void arrived(TimePoint at);
  /// When to poll, while two of the last three intervals were alike: an eighth of them, 0.25 to 1 ms, to
  /// either side of when it is due. None: sleep until it comes.
  std::optional<Window> next(TimePoint now) const;
  /// How a poll ended. Each that is crowded lets twice as much time pass without any, from kFirstRest on.
  void polled(Poll end, TimePoint now);

  /// Calls `came` until it is true or `until` is past, giving way in between.
  template <class Came>
  static Poll poll(TimePoint until, Came came) {
    const SteadyClock clock;
    for (TimePoint now = clock.now(); !came();) {
      if (now >= until) return Poll::kLate;
      std::this_thread::yield();
      const TimePoint before = std::exchange(now, clock.now());
      if (now - before >= kCrowded) return came() ? Poll::kCame : Poll::kCrowded;
    }
    return Poll::kCame;
  }

 private:
  bool enough_cores_;
  TimePoint last_{};
  std::array<Duration, 3> intervals_{};  ///< the newest last
  Duration rest_ = kFirstRest;
  TimePoint rests_until_{};
};

}  // namespace mesh
