#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "node/engine/engine.h"

namespace mesh::engine::testing {

/// Memory that cannot be had when a test says so.
class FailingMemory final : public AllocationFaults {
 public:
  /// The allocation after `count` more fails, once.
  void fail_after(std::int64_t count) { left_ = count; }
  /// Those of more bytes fail.
  void allow_at_most(std::uint64_t bytes) { most_ = bytes; }
  std::uint64_t refused() const { return refused_; }

  Status check(std::uint64_t bytes) override {
    const bool fails = left_-- == 0 || bytes > most_;
    if (!fails) return absl::OkStatus();
    ++refused_;
    return error(StatusCode::kResourceExhausted, "no memory for {} bytes", bytes);
  }

 private:
  std::atomic<std::int64_t> left_ = -1;
  std::atomic<std::uint64_t> most_ = std::numeric_limits<std::uint64_t>::max();
  std::atomic<std::uint64_t> refused_ = 0;
};

}  // namespace mesh::engine::testing
