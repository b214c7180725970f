#pragma once

#include <chrono>

namespace mesh {

using Duration = std::chrono::nanoseconds;
/// Monotonic time. Pure classes get it from a Clock or as an argument, never from the system.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

/// Virtual time for tests and the simulator. Single-threaded.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }
  void set(TimePoint to) { now_ = to; }

 private:
  TimePoint now_{};
};

}  // namespace mesh
