#include "node/engine/ops/backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace mesh::ops {
namespace {

TEST(ThreadPool, CoversEveryIndexOnceForAnyCountAndGrain) {
  ThreadPool pool(4);
  for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
    for (const std::int64_t grain : {1, 3, 999, 5000}) {
      std::vector<std::atomic<int>> hits(static_cast<std::size_t>(count));
      pool.parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) hits[static_cast<std::size_t>(i)]++;
      });
      for (const auto& hit : hits) ASSERT_EQ(hit, 1) << count << " by " << grain;
    }
  }
}

TEST(ThreadPool, ALoopEndsOnlyWhenItsLastRangeHasEnded) {
  ThreadPool pool(3);
  std::int64_t total = 0;
  for (int loop = 0; loop < 20000; ++loop) {  // short loops, so that late wakers meet the next one
    std::int64_t parts[8] = {};
    pool.parallel_for(8, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) parts[i] = i + loop;
    });
    for (int i = 0; i < 8; ++i) ASSERT_EQ(parts[i], i + loop);
    total += parts[7];
  }
  EXPECT_EQ(total, 20000LL * 7 + 20000LL * 19999 / 2);
}

TEST(CpuBackend, NamesRoundTripAndUnknownOnesAreRefused) {
  for (const CpuPath path : {CpuPath::kPortable, CpuPath::kAvx2, CpuPath::kAvx512, CpuPath::kAvx512Bf16}) {
    EXPECT_EQ(*parse_cpu_path(to_string(path)), path);
  }
  EXPECT_EQ(parse_cpu_path("sse9").status().code(), StatusCode::kInvalidArgument);
}

TEST(CpuBackend, TakesTheBestPathOrTheOneAskedFor) {
  const auto paths = available_cpu_paths();
  ASSERT_THAT(paths, testing::Contains(CpuPath::kPortable));
  EXPECT_EQ((*CpuBackend::create({1, {}}))->path(), paths.front());
  EXPECT_EQ((*CpuBackend::create({1, CpuPath::kPortable}))->path(), CpuPath::kPortable);
  EXPECT_FALSE(CpuBackend::create({0, {}}).ok());
}

TEST(CpuBackend, ScratchKeepsGrowingAndStaysAligned) {
  const auto backend = *CpuBackend::create({1, {}});
  for (const std::int64_t count : {1, 1000, 10, 3000000}) {
    float* data = backend->scratch(count);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0U);
    data[count - 1] = 1;
  }
}

}  // namespace
}  // namespace mesh::ops
