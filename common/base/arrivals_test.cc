#include "common/base/arrivals.h"

#include <gtest/gtest.h>

namespace mesh {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

const TimePoint kStart = TimePoint(std::chrono::hours(1));

/// Of a machine with cores enough, after arrivals at `times`.
ArrivalClock after(std::initializer_list<Duration> times, std::size_t cores = 16) {
  ArrivalClock clock(cores);
  for (const Duration time : times) clock.arrived(kStart + time);
  return clock;
}

TEST(Arrivals, TwoIntervalsAlikeTellWhenTheNextComes) {
  const ArrivalClock clock = after({milliseconds(0), milliseconds(8), milliseconds(16)});
  const auto window = clock.next(kStart + milliseconds(17));
  ASSERT_TRUE(window);
  EXPECT_EQ(window->from, kStart + milliseconds(23));  // 8 ms on, an eighth of them before
  EXPECT_EQ(window->until, kStart + milliseconds(25));
  EXPECT_FALSE(clock.next(kStart + milliseconds(25))) << "its time is past";
}

TEST(Arrivals, OneThatIsLateOnlyPutsTheNextOneOff) {
  const ArrivalClock clock = after({milliseconds(0), milliseconds(8), milliseconds(16), milliseconds(30)});
  const auto window = clock.next(kStart + milliseconds(31));
  ASSERT_TRUE(window);
  EXPECT_EQ(window->from, kStart + milliseconds(37));
}

TEST(Arrivals, WhatDoesNotComeSteadilyIsNotPolledFor) {
  EXPECT_FALSE(after({}).next(kStart));
  EXPECT_FALSE(after({milliseconds(0), milliseconds(8)}).next(kStart + milliseconds(9)));
  EXPECT_FALSE(after({milliseconds(0), milliseconds(8), milliseconds(18)}).next(kStart + milliseconds(19)));
  EXPECT_FALSE(
      after({milliseconds(0), milliseconds(60), milliseconds(120)}).next(kStart + milliseconds(121)));
  // Polling would never end.
  EXPECT_FALSE(
      after({microseconds(0), microseconds(500), microseconds(1000)}).next(kStart + microseconds(1001)));
}

TEST(Arrivals, OnFewCoresNobodyPolls) {
  for (const std::size_t cores : {0, 1, 2, 3}) {
    EXPECT_FALSE(
        after({milliseconds(0), milliseconds(8), milliseconds(16)}, cores).next(kStart + milliseconds(17)))
        << cores;
  }
}

TEST(Arrivals, WhereOthersTookTheCorePollsRestTwiceAsLongEachTime) {
  ArrivalClock clock(16);
  TimePoint now = kStart;
  const auto polls_after = [&](Duration rest) {
    now += rest;
    for (int i = 0; i < 3; ++i) clock.arrived(now += milliseconds(4));
    return clock.next(now).has_value();
  };
  ASSERT_TRUE(polls_after(Duration{}));
  clock.polled(ArrivalClock::Poll::kCrowded, now);
  EXPECT_FALSE(polls_after(milliseconds(900)));
  EXPECT_TRUE(polls_after(milliseconds(100)));
  clock.polled(ArrivalClock::Poll::kCrowded, now);
  EXPECT_FALSE(polls_after(milliseconds(1900)));
  EXPECT_TRUE(polls_after(milliseconds(100)));
  clock.polled(ArrivalClock::Poll::kCame, now);
  clock.polled(ArrivalClock::Poll::kCrowded, now);
  EXPECT_TRUE(polls_after(milliseconds(1000))) << "one that succeeds takes the doubling back";
}

TEST(Arrivals, APollEndsWithWhatItWaitsForOrItsTime) {
  const TimePoint now = SteadyClock().now();
  EXPECT_EQ(ArrivalClock::poll(now, [] { return true; }), ArrivalClock::Poll::kCame);
  EXPECT_EQ(ArrivalClock::poll(now, [] { return false; }), ArrivalClock::Poll::kLate);
}

}  // namespace
}  // namespace mesh
