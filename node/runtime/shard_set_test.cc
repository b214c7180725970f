#include "node/runtime/shard_set.h"

#include <gtest/gtest.h>

#include <future>

#include "node/runtime/fake_engine.h"

namespace mesh {
namespace {

constexpr std::uint32_t kAll = FakeEngine::kLayers;

TEST(ShardSet, AShardRunsNarrowerRangesOfItself) {
  const engine::ModelProfile profile = FakeEngine::profile();
  const engine::ShardSpec first{{0, 3}, true, false};
  EXPECT_TRUE(can_run(profile, first, {0, 3}, true));
  EXPECT_TRUE(can_run(profile, first, {1, 2}, false));
  EXPECT_TRUE(can_run(profile, first, {0, 0}, true));   // embeds only
  EXPECT_FALSE(can_run(profile, first, {1, 2}, true));  // ids enter at layer 0 only
  EXPECT_FALSE(can_run(profile, first, {2, 4}, false));
  EXPECT_FALSE(can_run(profile, {{3, kAll}, false, false}, {3, kAll}, false));  // no head
  EXPECT_TRUE(can_run(profile, {{3, kAll}, false, true}, {3, kAll}, false));
  EXPECT_FALSE(can_run(profile, first, {2, 2}, false));
}

class ShardSetTest : public testing::Test {
 protected:
  void add(LayerRange range) {
    const engine::ShardSpec spec{range, range.begin == 0, range.end == kAll};
    ASSERT_TRUE(*shards_.begin_load(identity_, spec));
    EXPECT_EQ(shards_.statuses().back().state, wire::ShardState::kLoading);
    shards_.finish_load(FakeEngine::make_shard(identity_, spec));
  }
  ShardSet shards_;
  ModelIdentity identity_ = *ModelIdentity::parse(std::string(64, 'a'));
};

TEST_F(ShardSetTest, ADrainingShardServesRunningSessionsOnly) {
  add({0, 3});
  EXPECT_NE(shards_.find_open(identity_, {0, 3}, true), nullptr);
  ASSERT_TRUE(shards_.begin_drain(identity_, {0, 3}).ok());
  EXPECT_EQ(shards_.find_open(identity_, {0, 3}, true), nullptr);
  EXPECT_NE(shards_.find(identity_, {0, 3}, true), nullptr);
  shards_.remove(identity_, {0, 3});
  EXPECT_EQ(shards_.find(identity_, {0, 3}, true), nullptr);
}

TEST_F(ShardSetTest, AShardThatIsLoadedWhileItsLikeDrainsStays) {
  add({0, 3});
  ASSERT_TRUE(shards_.begin_drain(identity_, {0, 3}).ok());
  add({0, 3});
  shards_.remove(identity_, {0, 3});
  EXPECT_NE(shards_.find_open(identity_, {0, 3}, true), nullptr);
  ASSERT_TRUE(shards_.begin_drain(identity_, {0, 3}).ok());
  add({0, 3});
  ASSERT_TRUE(shards_.begin_drain(identity_, {0, 3}).ok()) << "both";
  shards_.remove(identity_, {0, 3});
  EXPECT_TRUE(shards_.statuses().empty());
}

TEST_F(ShardSetTest, NobodyWaitsWhileAShardsMemoryIsFreed) {
  const engine::ShardSpec spec{{0, 3}, true, false};
  const auto inner = FakeEngine::make_shard(identity_, spec);
  std::future<void> looked;
  bool waited = false;
  ASSERT_TRUE(*shards_.begin_load(identity_, spec));
  shards_.finish_load({inner.get(), [&](const engine::Shard*) {
                         looked = std::async(std::launch::async, [&] { shards_.statuses(); });
                         waited = looked.wait_for(std::chrono::seconds(10)) != std::future_status::ready;
                       }});
  ASSERT_TRUE(shards_.begin_drain(identity_, {0, 3}).ok());
  shards_.remove(identity_, {0, 3});
  ASSERT_TRUE(looked.valid()) << "it was freed";
  EXPECT_FALSE(waited);
}

TEST_F(ShardSetTest, TheFirstLayersOfALoadTakeSessionsUntilAllOfThemDo) {
  const engine::ShardSpec all{{1, kAll}, false, true};
  ASSERT_TRUE(*shards_.begin_load(identity_, all));
  EXPECT_EQ(shards_.find_open(identity_, {1, 2}, false), nullptr);
  const auto part = [&](std::uint32_t end) {
    return FakeEngine::make_shard(identity_, {{1, end}, false, false});
  };
  shards_.note_part(all, part(2));
  EXPECT_NE(shards_.find_open(identity_, {1, 2}, false), nullptr);
  EXPECT_EQ(shards_.find_open(identity_, {1, 3}, false), nullptr);
  EXPECT_EQ(shards_.statuses()[0].state, wire::ShardState::kLoading);
  EXPECT_EQ(shards_.statuses()[0].ready, (LayerRange{1, 2}));
  shards_.note_part(all, part(4));
  EXPECT_NE(shards_.find_open(identity_, {2, 4}, false), nullptr);
  shards_.finish_load(FakeEngine::make_shard(identity_, all));
  EXPECT_EQ(shards_.find(identity_, {1, 2}, false)->spec(), all);
  EXPECT_TRUE(shards_.statuses()[0].ready.empty());
}

TEST_F(ShardSetTest, ALoadThatFailsTakesItsFirstLayersWithIt) {
  const engine::ShardSpec all{{0, kAll}, true, true};
  ASSERT_TRUE(*shards_.begin_load(identity_, all));
  shards_.note_part(all, FakeEngine::make_shard(identity_, {{0, 2}, true, false}));
  ASSERT_NE(shards_.find(identity_, {0, 2}, true), nullptr);
  shards_.abandon_load(identity_, all);
  EXPECT_EQ(shards_.find(identity_, {0, 2}, true), nullptr);
  EXPECT_TRUE(shards_.statuses().empty());
}

TEST_F(ShardSetTest, WhatIsHeldIsNotLoadedAgainAndALoadInProgressIsNotDoubled) {
  add({0, 4});
  EXPECT_FALSE(*shards_.begin_load(identity_, {{0, 4}, true, false}));
  const engine::ShardSpec tail{{4, kAll}, false, true};
  ASSERT_TRUE(*shards_.begin_load(identity_, tail));
  EXPECT_EQ(shards_.begin_load(identity_, tail).status().code(), StatusCode::kAlreadyExists);
  shards_.abandon_load(identity_, tail);
  EXPECT_TRUE(*shards_.begin_load(identity_, tail));
}

TEST_F(ShardSetTest, ANarrowerShardStaysWhenTheWiderOneGoes) {
  add({0, 4});
  add({0, 2});
  ASSERT_TRUE(shards_.begin_drain(identity_, {0, 4}).ok());
  shards_.remove(identity_, {0, 4});
  EXPECT_NE(shards_.find_open(identity_, {0, 2}, true), nullptr);
  EXPECT_EQ(shards_.find_open(identity_, {0, 3}, true), nullptr);
}

TEST_F(ShardSetTest, DroppingARangeThatIsNotHeldNamesWhatIs) {
  add({0, 3});
  EXPECT_NE(shards_.begin_drain(identity_, {0, 2}).ToString().find("[0, 3)"), std::string::npos);
}

TEST_F(ShardSetTest, PrefillTimesAreScaledTo128Rows) {
  add({0, 3});
  shards_.note_step(identity_, {0, 3}, wire::Lane::kBulk, 64, std::chrono::milliseconds(50));
  EXPECT_DOUBLE_EQ(shards_.figures()[0].prefill_seconds, 0.1);
  EXPECT_EQ(shards_.figures()[0].rows, 64u);
}

}  // namespace
}  // namespace mesh
