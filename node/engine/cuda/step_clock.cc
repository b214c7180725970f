#include "node/engine/cuda/step_clock.h"

#include <algorithm>
#include <thread>

namespace mesh::engine::cuda {
namespace {

constexpr std::size_t kMostKinds = 256;
/// How long before the expected end a sleeping thread is to wake: the system wakes it up to 0.1 ms late.
constexpr Duration kLeast = std::chrono::microseconds(250);
constexpr Duration kMost = std::chrono::milliseconds(1);

Duration poll_time(Duration expected) {
  return std::clamp<Duration>(expected / 8, kLeast, kMost);
}

}  // namespace

cudaError_t StepClock::wait(cudaEvent_t event, const StepKind& kind, TimePoint begun) {
  const SteadyClock clock;
  Duration expected{};
  {
    const std::lock_guard lock(mutex_);
    begun = std::max(begun, last_end_);
    if (const auto found = took_.find(kind); found != took_.end()) expected = found->second;
  }
  const Duration poll = poll_time(expected);
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
  if (took_.size() >= kMostKinds && !took_.contains(kind)) took_.clear();
  if (waits) took_[kind] = std::max(end - begun - (late ? poll : Duration::zero()), Duration(1));
  last_end_ = std::max(last_end_, end);
  return state;
}

}  // namespace mesh::engine::cuda
