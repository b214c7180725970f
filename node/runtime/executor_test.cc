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

TEST(Executor, ACacheWithoutRoomOnItsWayBackFailsItsStepsAndComesBackLater) {
  FakeEngine engine;
  BoundedQueue<pipeline::StepOutput> done{8};
  std::vector<std::string> moves;
  Executor executor(
      engine, [&](pipeline::StepOutput output, const StepRecord&) { done.push(std::move(output)); },
      [](pipeline::PrefixBlockId) {}, nullptr,
      [&](const pipeline::CacheMoved& moved) {
        moves.push_back(std::string(moved.to_host ? "out" : "in") + (moved.status.ok() ? "" : " failed"));
      });
  const LayerRange all{0, FakeEngine::kLayers};
  const auto shard = FakeEngine::make_shard({}, {all, true, true});
  const auto step = [&](Position start, std::vector<pipeline::CacheOrder> orders) {
    StepJob job;
    job.shard = shard;
    job.work.range = all;
    job.work.takes_ids = job.work.ends_model = true;
    for (auto& order : orders) job.orders.push_back({std::move(order), shard});
    pipeline::StepSegment segment;
    segment.cache = 1;
    segment.max_tokens = 100;
    segment.start = start;
    segment.rows = 1;
    segment.ids = {static_cast<TokenId>(start + 4)};
    segment.sample = true;
    job.work.segments.push_back(std::move(segment));
    EXPECT_TRUE(executor.run(std::move(job)));
    return done.pop()->segments[0];
  };
  ASSERT_TRUE(step(0, {}).status.ok());
  engine.fail_restores(true);
  const auto refused = step(1, {pipeline::SpillCache{1}, pipeline::RestoreCache{1}});
  EXPECT_EQ(refused.status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(message_of(refused.status), "needed 2 bytes, free 1");
  EXPECT_FALSE(refused.cache_lost) << "its tokens are in host memory";
  engine.fail_restores(false);
  const auto back = step(1, {});
  ASSERT_TRUE(back.status.ok()) << back.status;
  EXPECT_EQ(back.token->token, FakeEngine::expected({4, 5}, {all}, 1)[0]);
  executor.stop();
  EXPECT_EQ(moves, (std::vector<std::string>{"out", "in failed", "in failed", "in"}));
}

}  // namespace
}  // namespace mesh
