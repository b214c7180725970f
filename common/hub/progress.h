#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

namespace mesh::hub {

/// How far a fetch or a hashing pass is. `bytes_total` is what this call has to do, not the file's size.
struct Progress {
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
  double bytes_per_second = 0;  // since the start of the call
};

/// Called on the thread that does the work, about ten times a second at most and once at the end. May be
/// empty.
using ProgressFn = std::function<void(const Progress&)>;

/// Counts bytes and reports them to a ProgressFn. Thread-safe.
class ProgressMeter {
 public:
  ProgressMeter(ProgressFn report, std::uint64_t total) : report_(std::move(report)), total_(total) {}
  void add(std::uint64_t bytes);
  /// The last report; to be called once, when all is done.
  void finish();

 private:
  using Time = std::chrono::steady_clock::time_point;
  void report(Time now);

  const ProgressFn report_;
  const std::uint64_t total_;
  const Time start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::uint64_t done_ = 0;
  Time last_ = start_;
};

}  // namespace mesh::hub
