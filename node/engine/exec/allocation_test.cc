#include <gtest/gtest.h>

#include "node/engine/testing/failing_memory.h"
#include "node/engine/testing/golden.h"

// Memory that cannot be had in the middle of a step: that session alone fails, with the reason.
namespace mesh::engine::testing {
namespace {

class StepsWithoutMemory : public ::testing::Test {
 protected:
  static std::unique_ptr<Engine> engine(AllocationFaults* faults) {
    EngineOptions options;
    options.device = Device::kCpu;
    options.compute = ComputeType::kFloat32;
    options.threads = 1;
    options.memory_bytes = std::uint64_t{256} << 20;
    options.allocation_faults = faults;
    return *Engine::create(options);
  }
  static std::vector<TokenId> ids(int number, std::size_t count) {
    std::vector<TokenId> list;
    for (std::size_t i = 0; i < count; ++i)
      list.push_back(static_cast<TokenId>((7 + static_cast<std::size_t>(number) * 101 + i * 31) % 1500));
    return list;
  }
  CacheId open(Engine& on, const std::shared_ptr<const Shard>& shard) {
    return *on.open_cache(shard, all_, 300);
  }
  /// Logits after `list`, alone in an engine that has all memory.
  std::vector<float> alone(const std::vector<TokenId>& list) {
    const CacheId cache = open(*plain_, plain_shard_);
    const Segment segment = token_segment(cache, list);
    auto results = plain_->step(plain_shard_, all_, std::span(&segment, 1));
    plain_->close_cache(cache);
    return (*results)[0].logits;
  }

  const LayerRange all_{0, 6};
  std::unique_ptr<Engine> plain_ = engine(nullptr);
  std::shared_ptr<const Shard> plain_shard_ = load_all(*plain_, golden_folder("tiny-llama"));
  FailingMemory memory_;
  std::unique_ptr<Engine> engine_ = engine(&memory_);
  std::shared_ptr<const Shard> shard_ = load_all(*engine_, golden_folder("tiny-llama"));
};

TEST_F(StepsWithoutMemory, TheSessionThatGetsNoBlockFailsAloneAndGoesOnLater) {
  std::vector<Segment> batch;
  for (int i = 0; i < 4; ++i) batch.push_back(token_segment(open(*engine_, shard_), ids(i, 40)));
  memory_.fail_after(2);
  auto results = engine_->step(shard_, all_, batch);
  ASSERT_TRUE(results.ok());
  EXPECT_EQ((*results)[2].status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_->cache_state(batch[2].cache)->next, 0u);
  for (const int i : {0, 1, 3}) {
    EXPECT_TRUE((*results)[static_cast<std::size_t>(i)].status.ok());
    EXPECT_EQ((*results)[static_cast<std::size_t>(i)].logits, alone(ids(i, 40)));
  }
  results = engine_->step(shard_, all_, std::span(&batch[2], 1));
  EXPECT_EQ((*results)[0].logits, alone(ids(2, 40)));
}

TEST_F(StepsWithoutMemory, WhatHasNoRoomTogetherRunsOneByOne) {
  std::vector<Segment> batch;
  for (int i = 0; i < 4; ++i) batch.push_back(token_segment(open(*engine_, shard_), ids(i, 90)));
  // Takes the blocks of all and working space for 90 rows.
  for (const Segment& segment : batch) ASSERT_TRUE(engine_->step(shard_, all_, std::span(&segment, 1)).ok());
  // 90 rows take at most 90 · 512 values at a time (gate and up), 360 rows 360 · 256 (q, k and v).
  memory_.allow_at_most(90 * 512 * sizeof(float));
  auto results = engine_->step(shard_, all_, batch);
  ASSERT_TRUE(results.ok());
  EXPECT_GT(memory_.refused(), 0u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE((*results)[static_cast<std::size_t>(i)].status.ok());
    EXPECT_EQ((*results)[static_cast<std::size_t>(i)].logits, alone(ids(i, 90)));
  }
}

/// The n-th allocation fails, for every n there is, while four sessions run three steps each.
TEST_F(StepsWithoutMemory, WhicheverAllocationFailsEveryTextIsRightOrItsSessionSaysWhy) {
  std::vector<std::vector<float>> expected;
  for (int i = 0; i < 4; ++i) expected.push_back(alone(ids(i, 150)));
  std::vector<Segment> warm;
  for (int i = 0; i < 4; ++i) warm.push_back(token_segment(open(*engine_, shard_), ids(i, 50)));
  ASSERT_TRUE(engine_->step(shard_, all_, warm).ok());
  for (const Segment& segment : warm) engine_->close_cache(segment.cache);
  const std::uint64_t weights = engine_->memory().weight_bytes;
  std::uint64_t failed = 0;
  for (std::int64_t n = 0;; ++n) {
    std::vector<CacheId> caches;
    for (int i = 0; i < 4; ++i) caches.push_back(open(*engine_, shard_));
    const std::uint64_t refused = memory_.refused();
    memory_.fail_after(n);
    std::vector<bool> alive(4, true);
    for (std::size_t from = 0; from < 150; from += 50) {
      std::vector<Segment> batch;
      std::vector<std::size_t> who;
      for (std::size_t i = 0; i < 4; ++i) {
        if (!alive[i]) continue;
        const auto list = ids(static_cast<int>(i), 150);
        const auto first = list.begin() + static_cast<std::ptrdiff_t>(from);
        batch.push_back(token_segment(caches[i], {first, first + 50}, static_cast<Position>(from)));
        who.push_back(i);
      }
      const auto results = engine_->step(shard_, all_, batch);
      ASSERT_TRUE(results.ok());
      for (std::size_t k = 0; k < who.size(); ++k) {
        const SegmentResult& result = (*results)[k];
        if (!result.status.ok()) {
          EXPECT_EQ(result.status.code(), StatusCode::kResourceExhausted);
          alive[who[k]] = false;
          ++failed;
        } else if (from == 100) {
          EXPECT_EQ(result.logits, expected[who[k]]) << "allocation " << n;
        }
      }
    }
    for (const CacheId cache : caches) engine_->close_cache(cache);
    EXPECT_EQ(engine_->memory().cache_bytes, 0u);
    EXPECT_EQ(engine_->memory().weight_bytes, weights);
    if (memory_.refused() == refused) break;
  }
  EXPECT_EQ(failed, 8u) << "each session's two blocks";
}

}  // namespace
}  // namespace mesh::engine::testing
