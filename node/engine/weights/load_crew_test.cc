#include "node/engine/weights/load_crew.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <latch>
#include <new>
#include <thread>

#include "node/engine/testing/golden.h"

namespace mesh::engine::testing {
namespace {

using ::testing::HasSubstr;

LoadTask task(std::string part, std::function<Status()> run) {
  return {std::move(part), std::move(run)};
}

TEST(LoadCrew, TheCallersThreadHearsOfAllBytesInAscendingOrder) {
  LoadMeter meter(100);
  std::vector<LoadTask> tasks;
  for (int i = 0; i < 10; ++i) tasks.push_back(task("part", [&] { return meter.add(10); }));
  const auto caller = std::this_thread::get_id();
  std::vector<std::uint64_t> told;
  ASSERT_TRUE(run_load_tasks(tasks, meter, [&](const LoadProgress& so_far) {
                EXPECT_EQ(std::this_thread::get_id(), caller);
                EXPECT_EQ(so_far.bytes_total, 100u);
                told.push_back(so_far.bytes_done);
                return true;
              }).ok());
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  EXPECT_EQ(told.back(), 100u);
}

TEST(LoadCrew, TasksRunBesideEachOther) {
  LoadMeter meter(0);
  std::latch both(2);  // each waits for the other
  const auto meet = [&] {
    both.arrive_and_wait();
    return absl::OkStatus();
  };
  EXPECT_TRUE(run_load_tasks({task("one", meet), task("two", meet)}, meter, {}).ok());
}

TEST(LoadCrew, StepsComeFirst) {
  LoadMeter meter(0);
  const int before = ::getpriority(PRIO_PROCESS, 0);  // of this thread; a larger value is less urgent
  if (before >= 19) GTEST_SKIP() << "this process has the lowest priority";
  int during = before;
  ASSERT_TRUE(run_load_tasks({task("part",
                                   [&] {
                                     during = ::getpriority(PRIO_PROCESS, 0);
                                     return absl::OkStatus();
                                   })},
                             meter, {})
                  .ok());
  EXPECT_GT(during, before);
  EXPECT_EQ(::getpriority(PRIO_PROCESS, 0), before);
}

TEST(LoadCrew, AnErrorIsNamedAndEndsTheOthers) {
  LoadMeter meter(100);
  std::atomic<int> begun = 0;
  std::vector<LoadTask> tasks{
      task("layer 3", [] { return error(StatusCode::kInvalidArgument, "is broken"); })};
  for (int i = 0; i < 100; ++i) {
    tasks.push_back(task("layer 4", [&] {
      ++begun;
      while (meter.add(0).ok()) std::this_thread::yield();
      return meter.add(1);
    }));
  }
  const Status status = run_load_tasks(tasks, meter, {});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(message_of(status)), HasSubstr("layer 3: is broken"));
  EXPECT_LT(begun, static_cast<int>(load_threads()));
}

TEST(LoadCrew, ProgressThatSaysNoCancels) {
  LoadMeter meter(100);
  std::vector<LoadTask> tasks;
  for (int i = 0; i < 4; ++i) {
    tasks.push_back(task("part", [&]() -> Status {
      while (true) MESH_RETURN_IF_ERROR(meter.add(1));
    }));
  }
  const Status status = run_load_tasks(tasks, meter, [](const LoadProgress&) { return false; });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_THAT(std::string(message_of(status)), HasSubstr("of 100 bytes"));
}

TEST(LoadCrew, ATaskWithoutMemoryIsAnErrorAndTheProcessLives) {
  LoadMeter meter(1);
  const Status status =
      run_load_tasks({task("layer 9", []() -> Status { throw std::bad_alloc(); })}, meter, {});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(message_of(status)), HasSubstr("layer 9"));
}

TEST(LoadCrew, TasksWaitForWhatIsBroughtAndProgressHearsOfIt) {
  LoadMeter meter(100);
  std::latch brought(1);
  std::atomic<bool> heard = false;
  LoadTask waits = task("part", [&] { return meter.add(100); });
  waits.wait = [&] {
    brought.wait();
    return absl::OkStatus();
  };
  const auto bring = [&] {
    meter.fetched(40);
    while (!heard) std::this_thread::yield();
    brought.count_down();
    return absl::OkStatus();
  };
  LoadProgress last;
  ASSERT_TRUE(run_load_tasks(
                  {waits}, meter,
                  [&](const LoadProgress& so_far) {
                    last = so_far;
                    if (so_far.fetching && so_far.bytes_done == 40) heard = true;
                    return true;
                  },
                  bring)
                  .ok());
  EXPECT_FALSE(last.fetching);
  EXPECT_EQ(last.bytes_done, 100u);
}

TEST(LoadCrew, WhatCannotBeBroughtEndsTheLoadUnlessATaskSaysMore) {
  const auto lost = [] { return error(StatusCode::kUnavailable, "the source is gone"); };
  for (const bool broken : {false, true}) {
    LoadMeter meter(0);
    std::latch ran(1);
    const LoadTask first = task("layer 1", [&]() -> Status {
      ran.count_down();
      return broken ? error(StatusCode::kInvalidArgument, "is broken") : absl::OkStatus();
    });
    const Status status = run_load_tasks({first}, meter, {}, [&] {
      ran.wait();
      return lost();
    });
    EXPECT_EQ(status.code(), broken ? StatusCode::kInvalidArgument : StatusCode::kUnavailable);
    EXPECT_TRUE(meter.stopped());
  }
}

TEST(LoadedShards, AreTheSameHoweverManyThreadsMadeThem) {
  const auto logits = [] {
    const auto engine = cpu_engine(ComputeType::kBfloat16);
    Chain chain(*engine, load_all(*engine, golden_folder("tiny-qwen3")), {}, HiddenType::kFloat32, 16);
    return chain.logits(std::vector<TokenId>{1, 2, 3, 4});
  };
  const std::vector<float> first = logits();
  for (int round = 0; round < 5; ++round) EXPECT_EQ(logits(), first);
}

}  // namespace
}  // namespace mesh::engine::testing
