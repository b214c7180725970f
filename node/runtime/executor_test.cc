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

}  // namespace
}  // namespace mesh
