#include "common/base/strand.h"

#include <gtest/gtest.h>

#include <future>
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
