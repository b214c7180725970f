#include "node/engine/weights/memory_budget.h"

#include <gtest/gtest.h>

namespace mesh::engine {
namespace {

constexpr auto kCache = MemoryUseKind::kCache;
constexpr auto kWeights = MemoryUseKind::kWeights;

bool refused(const Status& status) {
  return status.code() == StatusCode::kResourceExhausted;
}

TEST(MemoryBudget, WhatCachesWerePromisedNoLoadIsGiven) {
  MemoryBudget budget(100);
  MemoryBudget::Promise promise(budget);
  ASSERT_TRUE(promise.resize(60).ok());
  EXPECT_EQ(budget.totals().free(), 40u);
  EXPECT_TRUE(refused(budget.reserve(kWeights, 41, "a shard").status()));
  const auto shard = budget.reserve(kWeights, 40, "a shard");
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_TRUE(refused(promise.resize(61))) << "the shard has it";
  EXPECT_TRUE(budget.reserve(kCache, 60, "a cache").ok()) << "the promise holds";
}

TEST(MemoryBudget, ACacheIsOpenedOutOfThePromiseAndNotCountedBesideIt) {
  MemoryBudget budget(100);
  MemoryBudget::Promise promise(budget);
  ASSERT_TRUE(promise.resize(60).ok());
  auto cache = budget.reserve(kCache, 50, "a cache");
  EXPECT_EQ(budget.totals().free(), 40u);
  ASSERT_TRUE(promise.resize(0).ok());
  EXPECT_EQ(budget.totals().free(), 50u) << "what is open counts alone";
  ASSERT_TRUE(promise.resize(100).ok()) << "the open one is part of it";
  EXPECT_EQ(budget.totals().free(), 0u);
}

TEST(MemoryBudget, PromisesAddUpAndEndWithTheirHolders) {
  MemoryBudget budget(100);
  MemoryBudget::Promise one(budget);
  ASSERT_TRUE(one.resize(60).ok());
  {
    MemoryBudget::Promise other(budget);
    EXPECT_TRUE(refused(other.resize(41)));
    EXPECT_TRUE(other.resize(40).ok());
    EXPECT_TRUE(refused(other.resize(41)));
    EXPECT_TRUE(refused(other.resize(~std::uint64_t{0})));
    EXPECT_EQ(budget.totals().free(), 0u) << "a refusal leaves what was promised";
  }
  EXPECT_EQ(budget.totals().free(), 40u);
}

}  // namespace
}  // namespace mesh::engine
