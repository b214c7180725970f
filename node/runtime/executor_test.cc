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
  explicit Steps(Executor::Moved moved, std::size_t at_once = 1)
      : engine(at_once),
        executor_(
            engine, [this](pipeline::StepOutput output, const StepRecord&) { done_.push(std::move(output)); },
            [](pipeline::PrefixBlockId) {}, nullptr, std::move(moved)) {}

  void begin(pipeline::CacheId cache, Position start, std::vector<pipeline::CacheOrder> orders = {}) {
    StepJob job;
    job.shard = shard_;
    job.work.range = kAll;
    job.work.takes_ids = job.work.ends_model = true;
    job.work.rows = 1;
    job.orders = jobs(std::move(orders));
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
  void carry_out(std::vector<pipeline::CacheOrder> orders) {
    std::vector<CacheJob> list = jobs(std::move(orders));
    executor_.carry_out(list);
  }
  void stop() { executor_.stop(); }
  bool call() {
    return executor_.call([] {});
  }

  static constexpr LayerRange kAll{0, FakeEngine::kLayers};
  FakeEngine engine;

 private:
  std::vector<CacheJob> jobs(std::vector<pipeline::CacheOrder> orders) const {
    std::vector<CacheJob> list;
    for (auto& order : orders) list.push_back({std::move(order), shard_});
    return list;
  }

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

TEST(Executor, WhoHearsOfACopyMayGiveAStepOfItsCacheThereAndThen) {
  Steps steps(
      [&steps](const pipeline::CacheMoved& moved) {
        if (moved.to_host) return;
        steps.begin(1, 1);  // back
        steps.begin(2, 0);  // ordered to begin behind it
      },
      2);
  steps.run(1, 0);
  steps.engine.set_copy_gate(false);
  steps.carry_out({pipeline::SpillCache{1}, pipeline::RestoreCache{1},
                   pipeline::BeginCache{{}, 2, {}, Steps::kAll, true, 100, 0, {}}});
  steps.run(3, 0);  // the orders are given out
  steps.engine.set_copy_gate(true);
  EXPECT_EQ(steps.end().token->token, FakeEngine::expected({4, 5}, {Steps::kAll}, 1)[0]);
  EXPECT_EQ(steps.end().token->token, FakeEngine::expected({4}, {Steps::kAll}, 1)[0]);
  steps.stop();
}

TEST(Executor, WhatAStepThatIsDroppedAtTheStopWasToFreeIsFreed) {
  Steps steps({});
  steps.engine.set_gate(false);
  steps.begin(1, 0);
  steps.begin(2, 0, {pipeline::FreeCache{1}});
  auto stopped = std::async(std::launch::async, [&] { steps.stop(); });
  while (steps.call()) std::this_thread::yield();
  steps.engine.set_gate(true);
  stopped.get();
  EXPECT_EQ(steps.engine.open_caches(), 0u);
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
  EXPECT_EQ(moves, (std::vector<std::string>{"out", "in failed"})) << "one for each order";
}

/// An executor over an engine whose device runs two steps, one of each session.
class HeldSteps : public testing::Test {
 protected:
  HeldSteps() { engine_.set_gate(false); }
  ~HeldSteps() override { engine_.set_gate(true); }

  void run(std::uint64_t id, std::vector<pipeline::CacheOrder> orders = {}, std::uint32_t rows = 1,
           const ModelIdentity& model = {}) {
    StepJob job;
    job.shard = shard_;
    job.work.id = id;
    job.work.identity = model;
    job.work.range = all_;
    job.work.takes_ids = job.work.ends_model = true;
    job.work.rows = rows;
    for (auto& order : orders) job.orders.push_back({std::move(order), shard_});
    pipeline::StepSegment segment;
    segment.cache = id;
    segment.max_tokens = 100;
    segment.rows = rows;
    segment.ids.assign(rows, static_cast<TokenId>(id));
    segment.sample = true;
    job.work.segments.push_back(std::move(segment));
    ASSERT_TRUE(executor_.run(std::move(job)));
  }

  const LayerRange all_{0, FakeEngine::kLayers};
  const std::shared_ptr<const engine::Shard> shard_ = FakeEngine::make_shard({}, {all_, true, true});
  FakeEngine engine_{2};
  BoundedQueue<pipeline::StepOutput> done_{8};
  Executor executor_{
      engine_, [this](pipeline::StepOutput output, const StepRecord&) { done_.push(std::move(output)); },
      [](pipeline::PrefixBlockId) {}};
};

TEST_F(HeldSteps, AFewRowsAreBegunByTheThreadThatBringsThemOnceTheDeviceHasTakenSuchAStepOver) {
  engine_.set_gate(true);
  std::uint64_t id = 0;
  const auto beginner_of = [&](std::uint32_t rows) {
    run(++id, {}, rows);
    EXPECT_EQ(done_.pop()->id, id);
    return engine_.beginner();
  };
  const std::thread::id own = std::this_thread::get_id();
  EXPECT_NE(beginner_of(1), own) << "the device may not take it over";
  // The executor's thread may be about to sleep still.
  while (id < 1000 && beginner_of(1) != own) std::this_thread::yield();
  EXPECT_EQ(engine_.beginner(), own);
  EXPECT_NE(beginner_of(3), own);
}

// A device whose step of another model is under way may have to end that first, or lack buffers of this
// shape.
TEST_F(HeldSteps, TheFirstStepAfterAnotherModelsIsBegunByTheExecutor) {
  engine_.set_gate(true);
  std::uint64_t id = 0;
  const ModelIdentity one = *ModelIdentity::parse(std::string(64, '1'));
  const ModelIdentity other = *ModelIdentity::parse(std::string(64, '2'));
  const auto beginner_of = [&](const ModelIdentity& model) {
    run(++id, {}, 1, model);
    EXPECT_EQ(done_.pop()->id, id);
    return engine_.beginner();
  };
  const std::thread::id own = std::this_thread::get_id();
  for (const ModelIdentity& model : {one, other, one}) {
    EXPECT_NE(beginner_of(model), own) << model.hex();
    while (id < 1000 && beginner_of(model) != own) std::this_thread::yield();
    EXPECT_EQ(engine_.beginner(), own);
  }
}

TEST_F(HeldSteps, WhatWaitsIsNotOvertaken) {
  engine_.set_gate(true);
  run(2);
  done_.pop();
  std::promise<void> began, go_on;
  ASSERT_TRUE(executor_.call([&] {
    began.set_value();
    go_on.get_future().wait();
  }));
  began.get_future().wait();
  run(1);
  EXPECT_EQ(engine_.log(), (std::vector<std::string>{"begin", "end"}));
  go_on.set_value();
  EXPECT_TRUE(engine_.wait_begun(2, std::chrono::seconds(20)));
}

TEST_F(HeldSteps, TheNextOneIsBegunWhileOneRuns) {
  run(1, {}, 9);
  run(2, {}, 9);
  EXPECT_TRUE(engine_.wait_begun(2, std::chrono::seconds(20)));
  EXPECT_EQ(done_.size(), 0u);
  engine_.set_gate(true);
  for (const std::uint64_t id : {1u, 2u}) {
    const pipeline::StepOutput output = *done_.pop();
    EXPECT_EQ(output.id, id);
    ASSERT_TRUE(output.segments[0].status.ok()) << output.segments[0].status;
    EXPECT_EQ(output.segments[0].token->token,
              FakeEngine::expected(std::vector<TokenId>(9, static_cast<TokenId>(id)), {all_}, 1)[0]);
  }
}

TEST_F(HeldSteps, OrdersWaitUntilTheStepsBeforeThemHaveEnded) {
  run(1);
  ASSERT_TRUE(engine_.wait_begun(1, std::chrono::seconds(20)));
  run(2, {pipeline::FreeCache{1}});
  EXPECT_FALSE(engine_.wait_begun(2, std::chrono::milliseconds(20)));
  engine_.set_gate(true);
  EXPECT_EQ(done_.pop()->id, 1u);
  EXPECT_EQ(done_.pop()->id, 2u);
  EXPECT_EQ(engine_.log(), (std::vector<std::string>{"begin", "end", "close", "begin", "end"}));
}

TEST_F(HeldSteps, CallsRunWhileNoStepIsUnderWay) {
  run(1);
  std::promise<std::vector<std::string>> seen;
  ASSERT_TRUE(executor_.call([&] { seen.set_value(engine_.log()); }));
  ASSERT_TRUE(engine_.wait_begun(1, std::chrono::seconds(20)));
  engine_.set_gate(true);
  EXPECT_EQ(seen.get_future().get(), (std::vector<std::string>{"begin", "end"}));
}

TEST_F(HeldSteps, StoppingWaitsForThoseUnderWay) {
  run(1);
  run(2);
  ASSERT_TRUE(engine_.wait_begun(2, std::chrono::seconds(20)));
  auto stopped = std::async(std::launch::async, [&] { executor_.stop(); });
  engine_.set_gate(true);
  stopped.get();
  EXPECT_EQ(done_.size(), 2u);
}

TEST_F(HeldSteps, AStepThatFailsFailsAloneThoughAnotherFollowsIt) {
  engine_.fail_next_step(error(StatusCode::kInternal, "broken"));
  run(1);
  run(2);
  ASSERT_TRUE(engine_.wait_begun(2, std::chrono::seconds(20)));
  engine_.set_gate(true);
  EXPECT_EQ(message_of(done_.pop()->segments[0].status), "broken");
  EXPECT_TRUE(done_.pop()->segments[0].status.ok());
}

}  // namespace
}  // namespace mesh
