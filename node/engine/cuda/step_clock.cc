#include "node/engine/cuda/step_clock.h"

#include <algorithm>
#include <thread>

#include "common/base/arrivals.h"

namespace mesh::engine::cuda {
namespace {

constexpr std::size_t kMostKinds = 256;

}  // namespace

cudaError_t StepClock::wait(cudaEvent_t event, const StepKind& kind, TimePoint begun) {
  const SteadyClock clock;
  Seen before;
  {
    const std::lock_guard lock(mutex_);
    begun = std::max(begun, last_end_);
    if (const auto found = seen_.find(kind); found != seen_.end()) before = found->second;
  }
  const Duration expected = before.took;
  const Duration poll = ArrivalClock::slack(expected);
  cudaError_t state = cudaEventQuery(event);
  const bool waits = state == cudaErrorNotReady;
  bool late = false;  // it had ended when the thread woke: when, nobody saw
  if (waits && expected > Duration::zero()) {
    std::this_thread::sleep_until(begun + expected - poll);
    state = cudaEventQuery(event);
    late = state == cudaSuccess;
    while (state == cudaErrorNotReady && clock.now() < begun + expected + poll) {
      std::this_thread::yield();
      state = cudaEventQuery(event);
    }
  }
  if (state == cudaErrorNotReady) state = cudaEventSynchronize(event);
  const std::lock_guard lock(mutex_);
  const TimePoint end = clock.now();
  if (seen_.size() >= kMostKinds && !seen_.contains(kind)) seen_.clear();
  if (waits) {
    // A step that once took far longer, because the machine stood still, is forgotten by halves.
    const Duration took = !late ? end - begun : before.late ? expected / 2 : end - begun - poll;
    seen_[kind] = {std::max(took, Duration(1)), late};
  }
  last_end_ = std::max(last_end_, end);
  return state;
}

}  // namespace mesh::engine::cuda
