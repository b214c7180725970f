#include "node/runtime/cache_jobs.h"

#include <gtest/gtest.h>

#include "node/runtime/fake_engine.h"

namespace mesh {
namespace {

/// Cache 1 of the whole model, with a token.
class CacheJobsTest : public testing::Test {
 protected:
  CacheJobsTest() {
    carry_out(pipeline::BeginCache{{}, 1, {}, kAll, true, 100, 0, {}});
    segment_.cache = 1;
    segment_.max_tokens = 100;
    segment_.start = 1;
    segment_.rows = 1;
  }
  void carry_out(pipeline::CacheOrder order) {
    jobs_.carry_out({std::move(order), shard_});
    jobs_.wait();
  }
  StatusOr<engine::CacheId> cache_of_step() {
    on_host_ = false;
    return jobs_.cache_for(segment_, kAll, shard_, on_host_);
  }

  static constexpr LayerRange kAll{0, FakeEngine::kLayers};
  FakeEngine engine_;
  const std::shared_ptr<const engine::Shard> shard_ = FakeEngine::make_shard({}, {kAll, true, true});
  pipeline::StepSegment segment_;
  std::vector<pipeline::CacheMoved> moves_;
  bool on_host_ = false;
  CacheJobs jobs_{engine_, [](pipeline::PrefixBlockId) {},
                  [this](const pipeline::CacheMoved& moved) { moves_.push_back(moved); }};
};

TEST_F(CacheJobsTest, AWayBackThatAStepTriesAgainIsNoFurtherMove) {
  carry_out(pipeline::SpillCache{1});
  engine_.fail_restores(true);
  carry_out(pipeline::RestoreCache{1});
  ASSERT_EQ(moves_.size(), 2u);
  EXPECT_FALSE(moves_[1].status.ok());
  EXPECT_EQ(cache_of_step().status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(on_host_);
  engine_.fail_restores(false);
  EXPECT_TRUE(cache_of_step().ok());
  EXPECT_FALSE(on_host_);
  EXPECT_EQ(moves_.size(), 2u) << "the table counts them against its orders";
}

TEST_F(CacheJobsTest, AStepThatMayHaveToCopyBeginsWhereItMayWait) {
  EXPECT_TRUE(jobs_.idle());
  carry_out(pipeline::SpillCache{1});
  engine_.fail_restores(true);
  carry_out(pipeline::RestoreCache{1});
  EXPECT_FALSE(jobs_.idle()) << "its step will copy it";
  engine_.fail_restores(false);
  ASSERT_TRUE(cache_of_step().ok());
  EXPECT_TRUE(jobs_.idle());
}

TEST_F(CacheJobsTest, OneThatIsFreedOnItsWayBackIsWaitedForNoLonger) {
  carry_out(pipeline::SpillCache{1});
  engine_.fail_restores(true);
  carry_out(pipeline::RestoreCache{1});
  carry_out(pipeline::FreeCache{1});
  EXPECT_TRUE(jobs_.idle());
  EXPECT_EQ(engine_.open_caches(), 0u);
}

}  // namespace
}  // namespace mesh
