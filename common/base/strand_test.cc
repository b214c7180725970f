#include "common/base/strand.h"

#include <gtest/gtest.h>

#include <future>
#include <set>
#include <vector>

namespace mesh {
namespace {

TEST(Strand, RunsACommandBeforePostReturnsAndSettlesAfterIt) {
  std::vector<int> seen;
  Strand strand(4, [&] { seen.push_back(0); });
  EXPECT_TRUE(strand.post([&] { seen.push_back(1); }));
  EXPECT_EQ(seen, (std::vector<int>{1, 0}));
}

TEST(Strand, ACommandThatPostsIsFollowedNotInterrupted) {
  std::vector<int> seen;
  Strand strand(1, [&] { seen.push_back(0); });
  strand.post([&] {
    for (int i = 2; i < 5; ++i) strand.post([&seen, i] { seen.push_back(i); });  // more than the capacity
    seen.push_back(1);
  });
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3, 4, 0}));
}

TEST(Strand, WhatIsPostedMeanwhileRunsOnTheThreadThatIsAtIt) {
  Strand strand(4, [] {});
  std::promise<void> began, go_on;
  std::thread::id first, second;
  std::thread busy([&] {
    strand.post([&] {
      first = std::this_thread::get_id();
      began.set_value();
      go_on.get_future().wait();
    });
  });
  began.get_future().wait();
  EXPECT_TRUE(strand.post([&] { second = std::this_thread::get_id(); }));
  EXPECT_EQ(second, std::thread::id());
  go_on.set_value();
  busy.join();
  EXPECT_EQ(second, first);
}

/// A strand of which every batch leaves one more command behind, as if others posted without end. On any
/// thread but the test's, commands wait for `released`.
class BusyStrand : public testing::Test {
 protected:
  static constexpr std::size_t kCommands = 10 * Strand::kTurn;

  void run_one() {
    if (std::this_thread::get_id() != poster) is_released.wait();
    ran_on.push_back(std::this_thread::get_id());
  }
  void settle() {
    if (ran_on.size() == kCommands) {
      done.set_value();
    } else {
      strand.post([this] { run_one(); });
    }
  }

  const std::thread::id poster = std::this_thread::get_id();
  std::vector<std::thread::id> ran_on;  ///< of each command
  std::promise<void> released, done;
  const std::shared_future<void> is_released = released.get_future().share();
  Strand strand{4, [this] { settle(); }};
};

TEST_F(BusyStrand, ReleasesWhoPostedAfterItsTurnAndGoesOnOnAThreadOfItsOwn) {
  strand.post([this] { run_one(); });
  EXPECT_EQ(ran_on, std::vector(Strand::kTurn, poster));
  released.set_value();
  done.get_future().wait();
  strand.close();
  EXPECT_EQ(ran_on.size(), kCommands);
  const std::set<std::thread::id> others(ran_on.begin() + std::ptrdiff_t{Strand::kTurn}, ran_on.end());
  EXPECT_EQ(others.size(), 1u);
  EXPECT_FALSE(others.contains(poster));
}

TEST_F(BusyStrand, ClosesWhenWhatWasGivenUpHasRun) {
  strand.post([this] { run_one(); });
  std::thread closer([this] {
    strand.close();
    EXPECT_EQ(ran_on.size(), Strand::kTurn + 1);
  });
  while (!strand.closed()) std::this_thread::yield();
  released.set_value();
  closer.join();
}

TEST(Strand, CommandsOfManyThreadsNeverOverlapAndNoneIsLost) {
  int count = 0, settled = 0;  // plain: a sanitizer sees an overlap, too
  Strand strand(8, [&] { ++settled; });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 2000; ++k) strand.post([&] { ++count; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 8000);
  EXPECT_GE(settled, 1);
}

TEST(Strand, CloseWaitsForWhatWasPostedAndRefusesTheRest) {
  Strand strand(4, [] {});
  std::promise<void> began, go_on;
  bool later = false;
  std::thread busy([&] {
    strand.post([&] {
      began.set_value();
      go_on.get_future().wait();
    });
  });
  began.get_future().wait();
  strand.post([&] { later = true; });
  std::thread closer([&] { strand.close(); });
  while (!strand.closed()) std::this_thread::yield();
  EXPECT_FALSE(strand.post([] {}));
  go_on.set_value();
  closer.join();
  EXPECT_TRUE(later);
  busy.join();
}

}  // namespace
}  // namespace mesh
