#include "node/engine/cache/host_blocks.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "node/engine/weights/memory_budget.h"

namespace mesh::engine {

struct HostBlocks::State {
  explicit State(std::uint64_t most) : budget(most) {}

  std::mutex mutex;
  const std::uint64_t budget;
  std::uint64_t used = 0;
  std::uint64_t waiting = 0;                         ///< bytes of `spare`
  std::multimap<std::uint64_t, DeviceMemory> spare;  ///< by size

  void give_back(std::uint64_t bytes, DeviceMemory memory) {
    const std::lock_guard lock(mutex);
    used -= bytes;
    waiting += bytes;
    spare.emplace(bytes, std::move(memory));
  }
};

HostBlocks::HostBlocks(DeviceOps& ops, std::uint64_t budget, AllocationFaults* faults)
    : ops_(ops), faults_(faults), state_(std::make_shared<State>(budget)) {}

StatusOr<DeviceMemory> HostBlocks::take(std::uint64_t bytes) {
  DeviceMemory memory;
  {
    std::vector<DeviceMemory> freed;  // outside of the lock: freeing page-locked memory waits for the device
    const std::lock_guard lock(state_->mutex);
    const std::uint64_t free = state_->budget - state_->used;
    if (bytes > free) {
      return error(
          StatusCode::kResourceExhausted,
          "not enough host memory for a cache that leaves the device: needed {}, free {}; give more with "
          "--spill-memory",
          byte_text(bytes), byte_text(free));
    }
    if (const auto same = state_->spare.find(bytes); same != state_->spare.end()) {
      memory = std::move(same->second);
      state_->spare.erase(same);
      state_->waiting -= bytes;
    }
    while (!memory && bytes > free - state_->waiting) {
      const auto largest = std::prev(state_->spare.end());
      state_->waiting -= largest->first;
      freed.push_back(std::move(largest->second));
      state_->spare.erase(largest);
    }
    state_->used += bytes;
  }
  if (!memory) {
    Status status = faults_ == nullptr ? absl::OkStatus() : faults_->check(bytes);
    if (status.ok()) {
      auto made = ops_.allocate_host(bytes);
      status = made.status();
      if (made.ok()) memory = *std::move(made);
    }
    if (!status.ok()) {
      const std::lock_guard lock(state_->mutex);
      state_->used -= bytes;
      return status;
    }
  }
  std::byte* const data = memory.get();
  return DeviceMemory(data, [state = state_, bytes, memory](std::byte*) mutable {
    state->give_back(bytes, std::move(memory));
  });
}

std::uint64_t HostBlocks::budget() const {
  return state_->budget;
}

std::uint64_t HostBlocks::used() const {
  const std::lock_guard lock(state_->mutex);
  return state_->used;
}

}  // namespace mesh::engine
