#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <map>
#include <mutex>

#include "common/base/clock.h"

namespace mesh::engine::cuda {

/// What a forward's time depends on, near enough: first layer, layers, rows, rows of the head.
using StepKind = std::array<std::int64_t, 4>;

/// Waits for a forward's end. An event that a thread sleeps on tells 0.25 to 0.35 ms late under a hypervisor,
/// a tenth of a token; a thread that only polls has a core to itself. So the thread sleeps for most of what
/// the last forward of the kind took, polls near its end, and sleeps on the event when that is late.
/// Thread-safe.
class StepClock {
 public:
  /// `event` was recorded at `begun`, with cudaEventBlockingSync, behind all that was waited for before.
  cudaError_t wait(cudaEvent_t event, const StepKind& kind, TimePoint begun);

 private:
  std::mutex mutex_;
  /// late: the thread woke after the end, so the step took less than this, nobody knows how much.
  struct Seen {
    Duration took{};
    bool late = false;
  };
  std::map<StepKind, Seen> seen_;
  TimePoint last_end_{};
};

}  // namespace mesh::engine::cuda
