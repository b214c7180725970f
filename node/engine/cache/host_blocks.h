#pragma once

#include <cstdint>
#include <memory>

#include "node/engine/device/device_ops.h"
#include "node/engine/engine.h"

namespace mesh::engine {

/// Host memory for blocks that left the device, within a budget of bytes. What is given back waits for the
/// next block of its size, since memory that a device copies to fast is slow to get; it makes room for blocks
/// of other sizes. Thread-safe; blocks may outlive it.
class HostBlocks {
 public:
  /// `faults`: null, or asked before each allocation.
  HostBlocks(DeviceOps& ops, std::uint64_t budget, AllocationFaults* faults);

  /// kResourceExhausted, with needed and free bytes and the option that helps.
  StatusOr<DeviceMemory> take(std::uint64_t bytes);
  std::uint64_t budget() const;
  std::uint64_t used() const;  ///< bytes of blocks that somebody holds

 private:
  struct State;
  DeviceOps& ops_;
  AllocationFaults* const faults_;
  const std::shared_ptr<State> state_;
};

}  // namespace mesh::engine
