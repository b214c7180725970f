#include "node/runtime/lane_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "common/base/bounded_queue.h"

namespace mesh {
namespace {

using std::chrono::milliseconds;

/// A thread that takes items from `queue` and tells what it took, with its number.
class Taker {
 public:
  using Seen = BoundedQueue<std::pair<int, int>>;

  Taker(LaneQueue<int>& queue, int number, Seen& seen)
      : thread_([this, &queue, &seen, number] {
          while (auto item = queue.pop(turn_)) seen.push({number, *item});
        }) {}
  ~Taker() { thread_.join(); }

 private:
  LaneQueue<int>::Turn turn_;
  std::thread thread_;
};

TEST(LaneQueue, TakesNoMoreThanItsCapacityAndLeavesTheRestUntouched) {
  LaneQueue<std::string> queue(1);
  std::string first = "first", second = "second";
  EXPECT_TRUE(queue.try_push(first));
  EXPECT_FALSE(queue.try_push(second));
  EXPECT_EQ(second, "second");
}

TEST(LaneQueue, DrainsAfterItsEndAndTakesNothingMore) {
  LaneQueue<int> queue(4);
  LaneQueue<int>::Turn turn;
  int one = 1, two = 2;
  ASSERT_TRUE(queue.try_push(one));
  queue.close();
  EXPECT_FALSE(queue.try_push(two));
  EXPECT_EQ(queue.pop(turn), 1);
  EXPECT_EQ(queue.pop(turn), std::nullopt);
}

// With two threads, one of them goes on taking what comes one at a time: whoever was busy last.
TEST(LaneQueue, WhoeverWasBusyLastIsCalledFirst) {
  LaneQueue<int> queue(4, 1);
  Taker::Seen seen(64);
  Taker first(queue, 1, seen), second(queue, 2, seen);
  const auto both_wait = [&] {
    while (queue.idle() < 2) std::this_thread::yield();
  };
  both_wait();
  int item = 0;
  ASSERT_TRUE(queue.try_push(item));
  const int taker = seen.pop()->first;
  for (item = 1; item < 20;) {
    both_wait();
    int pushed = item++;
    ASSERT_TRUE(queue.try_push(pushed));
    EXPECT_EQ(seen.pop(), std::pair(taker, item - 1));
  }
  queue.close();
}

// Takers of a machine with many cores poll at times, sleep at times; nothing is lost or taken twice.
TEST(LaneQueue, EveryItemIsTakenOnceInTheOrderInWhichItCame) {
  for (const std::size_t cores : {1, 64}) {
    LaneQueue<int> queue(4, cores);
    Taker::Seen seen(1024);
    Taker only(queue, 1, seen);
    const SteadyClock clock;
    TimePoint due = clock.now();
    for (int item = 0; item < 60; ++item) {
      std::this_thread::sleep_until(due += milliseconds(item < 30 ? 2 : 1 + item % 5));
      int pushed = item;
      ASSERT_TRUE(queue.try_push(pushed)) << "nobody took " << item - 1;
      EXPECT_EQ(seen.pop(), std::pair(1, item));
    }
    queue.close();
  }
}

TEST(LaneQueue, TwoTakersShareABurst) {
  for (int round = 0; round < 20; ++round) {
    LaneQueue<int> queue(64, 64);
    Taker::Seen seen(1024);
    Taker first(queue, 1, seen), second(queue, 2, seen);
    for (int item = 0; item < 40; ++item) {
      int pushed = item;
      ASSERT_TRUE(queue.try_push(pushed));
    }
    std::vector<bool> taken(40);
    for (int i = 0; i < 40; ++i) {
      const int item = seen.pop()->second;
      EXPECT_FALSE(taken[item]) << item;
      taken[item] = true;
    }
    queue.close();
  }
}

}  // namespace
}  // namespace mesh
