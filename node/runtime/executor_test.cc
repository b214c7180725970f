#include "node/runtime/executor.h"

#include <gtest/gtest.h>

#include <future>

#include "node/runtime/fake_engine.h"

namespace mesh {
namespace {

TEST(Executor, TakesAStepAtOnceThoughCallsFillItsQueue) {
  FakeEngine engine;
  std::promise<std::uint64_t> done;
  Executor executor(
      engine, [&](const pipeline::StepOutput& output, const StepRecord&) { done.set_value(output.id); },
      [](pipeline::PrefixBlockId) {});
  std::promise<void> began, go_on;
  ASSERT_TRUE(executor.call([&] {
    began.set_value();
    go_on.get_future().wait();
  }));
  began.get_future().wait();
  for (std::size_t i = 0; i < Executor::kCapacity; ++i) ASSERT_TRUE(executor.call([] {}));
  auto given = std::async(std::launch::async, [&] {
    StepJob job;
    job.work.id = 7;
    return executor.run(std::move(job));
  });
  EXPECT_EQ(given.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  go_on.set_value();
  EXPECT_TRUE(given.get());
  EXPECT_EQ(done.get_future().get(), 7u);
}

/// Steps of one row each of caches of the whole model.
class Steps {
 public:
  Steps(Executor::Moved moved)
      : executor_(
            engine, [this](pipeline::StepOutput output, const StepRecord&) { done_.push(std::move(output)); },
            [](pipeline::PrefixBlockId) {}, nullptr, std::move(moved)) {}

  void begin(pipeline::CacheId cache, Position start, std::vector<pipeline::CacheOrder> orders = {}) {
    StepJob job;
    job.shard = shard_;
    job.work.range = kAll;
    job.work.takes_ids = job.work.ends_model = true;
    for (auto& order : orders) job.orders.push_back({std::move(order), shard_});
    pipeline::StepSegment segment;
    segment.cache = cache;
    segment.max_tokens = 100;
    segment.start = start;
    segment.rows = 1;
    segment.ids = {static_cast<TokenId>(start + 4)};
    segment.sample = true;
    job.work.segments.push_back(std::move(segment));
    EXPECT_TRUE(executor_.run(std::move(job)));
  }
  pipeline::SegmentOutput end() { return done_.pop()->segments[0]; }
  pipeline::SegmentOutput run(pipeline::CacheId cache, Position start,
                              std::vector<pipeline::CacheOrder> orders = {}) {
    begin(cache, start, std::move(orders));
    return end();
  }
  void stop() { executor_.stop(); }

  static constexpr LayerRange kAll{0, FakeEngine::kLayers};
  FakeEngine engine;

 private:
  const std::shared_ptr<const engine::Shard> shard_ = FakeEngine::make_shard({}, {kAll, true, true});
  BoundedQueue<pipeline::StepOutput> done_{8};
  Executor executor_;
};

TEST(Executor, StepsRunBesideTheCopiesOfOtherCaches) {
  std::promise<void> moved;
  Steps steps([&](const pipeline::CacheMoved&) { moved.set_value(); });
  ASSERT_TRUE(steps.run(1, 0).status.ok());
  ASSERT_TRUE(steps.run(2, 0).status.ok());
  steps.engine.set_copy_gate(false);
  // The third begins with the memory of the first, the second shares and goes on.
  EXPECT_TRUE(
      steps
          .run(2, 1,
               {pipeline::SpillCache{1}, pipeline::BeginCache{{}, 3, {}, Steps::kAll, true, 100, 0, {}}})
          .status.ok());
  EXPECT_TRUE(steps.run(2, 2).status.ok());
  EXPECT_EQ(moved.get_future().wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_EQ(steps.engine.open_caches(), 2u) << "3 begins when 1 has left";
  steps.begin(3, 0);
  steps.engine.set_copy_gate(true);
  EXPECT_EQ(steps.end().token->token, FakeEngine::expected({4}, {Steps::kAll}, 1)[0]);
  EXPECT_EQ(steps.engine.open_caches(), 3u);
}

TEST(Executor, AStepWaitsForTheCopiesOfItsOwnCache) {
  Steps steps({});
  ASSERT_TRUE(steps.run(1, 0).status.ok());
  steps.engine.set_copy_gate(false);
  steps.begin(1, 1, {pipeline::SpillCache{1}, pipeline::RestoreCache{1}});
  steps.engine.set_copy_gate(true);
  const auto back = steps.end();
  ASSERT_TRUE(back.status.ok()) << back.status;
  EXPECT_EQ(back.token->token, FakeEngine::expected({4, 5}, {Steps::kAll}, 1)[0]);
}

TEST(Executor, ACacheWithoutRoomOnItsWayBackFailsItsStepsAndComesBackLater) {
  std::vector<std::string> moves;
  Steps steps([&](const pipeline::CacheMoved& moved) {
    moves.push_back(std::string(moved.to_host ? "out" : "in") + (moved.status.ok() ? "" : " failed"));
  });
  ASSERT_TRUE(steps.run(1, 0).status.ok());
  steps.engine.fail_restores(true);
  const auto refused = steps.run(1, 1, {pipeline::SpillCache{1}, pipeline::RestoreCache{1}});
  EXPECT_EQ(refused.status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(message_of(refused.status), "needed 2 bytes, free 1");
  EXPECT_FALSE(refused.cache_lost) << "its tokens are in host memory";
  steps.engine.fail_restores(false);
  const auto back = steps.run(1, 1);
  ASSERT_TRUE(back.status.ok()) << back.status;
  EXPECT_EQ(back.token->token, FakeEngine::expected({4, 5}, {Steps::kAll}, 1)[0]);
  steps.stop();
  EXPECT_EQ(moves, (std::vector<std::string>{"out", "in failed", "in failed", "in"}));
}

}  // namespace
}  // namespace mesh
