#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <mutex>
#include <type_traits>
#include <utility>

#include "common/base/status.h"

namespace mesh::hub {

/// How far a fetch or a hashing pass is. `bytes_total` is what this call has to do, not the file's size.
struct Progress {
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
  double bytes_per_second = 0;  // since the start of the call
};

/// Called on the thread that does the work, about ten times a second at most and once at the end. Made of a
/// function that returns nothing, or bool: then false cancels the work, which ends with kCancelled. May be
/// empty.
class ProgressFn {
 public:
  ProgressFn() = default;
  template <std::invocable<const Progress&> F>
  ProgressFn(F report) {  // NOLINT: meant to convert
    if constexpr (std::same_as<std::invoke_result_t<F, const Progress&>, void>) {
      call_ = [report = std::move(report)](const Progress& progress) mutable {
        return report(progress), true;
      };
    } else {
      call_ = std::move(report);
    }
  }
  bool operator()(const Progress& progress) const { return !call_ || call_(progress); }

 private:
  std::function<bool(const Progress&)> call_;
};

/// Counts bytes and reports them to a ProgressFn. Thread-safe.
class ProgressMeter {
 public:
  ProgressMeter(ProgressFn report, std::uint64_t total) : report_(std::move(report)), total_(total) {}
  /// kCancelled once the function returned false.
  Status add(std::uint64_t bytes);
  /// The last report; to be called once, when all is done.
  void finish();

 private:
  using Time = std::chrono::steady_clock::time_point;
  bool report(Time now);

  const ProgressFn report_;
  const std::uint64_t total_;
  const Time start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::uint64_t done_ = 0;
  Time last_ = start_;
  bool cancelled_ = false;
};

}  // namespace mesh::hub
