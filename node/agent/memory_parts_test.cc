#include "node/agent/memory_parts.h"

#include <gtest/gtest.h>

namespace mesh {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

engine::MemoryUse used() {
  return {.budget_bytes = 3000 * kMiB,
          .weight_bytes = 300 * kMiB,
          .cache_bytes = 200 * kMiB,
          .cache_blocks = 7,
          .caches = 1,
          .working_bytes = 20 * kMiB};
}

TEST(MemoryParts, AddUpToWhatTheProgramMayUse) {
  const MemoryParts parts = memory_parts(used(), 4000 * kMiB);
  EXPECT_EQ(parts.total(), 4000 * kMiB);
  EXPECT_EQ(parts.free, 2480 * kMiB);
  EXPECT_EQ(parts.hand_over, 1000 * kMiB);
  EXPECT_EQ(to_string(parts),
            "memory: 3.9 GiB = 300.0 MiB weights + 200.0 MiB KV of sessions + 20.0 MiB working space + "
            "1000.0 MiB kept outputs and frames + 2.4 GiB free");
}

TEST(MemoryParts, AnEngineWithAllOfItLeavesNoHandOver) {
  EXPECT_EQ(memory_parts(used(), 3000 * kMiB).hand_over, 0u);
  EXPECT_EQ(memory_parts(used(), 3000 * kMiB).total(), 3000 * kMiB);
}

}  // namespace
}  // namespace mesh
