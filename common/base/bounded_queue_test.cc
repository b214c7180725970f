#include "common/base/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace mesh {
namespace {

TEST(BoundedQueue, RefusesBeyondCapacityAndLeavesTheValue) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.try_push(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.try_push(second));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(*second, 2);
}

TEST(BoundedQueue, TakesWhatIsBoundedElsewhereThoughItIsFull) {
  BoundedQueue<int> queue(1);
  EXPECT_TRUE(queue.push(7));
  EXPECT_TRUE(queue.push_beyond(8));
  EXPECT_FALSE(queue.try_push(9));
  EXPECT_EQ(queue.pop(), 7);
  EXPECT_EQ(queue.pop(), 8);
  queue.close();
  EXPECT_FALSE(queue.push_beyond(10));
}

TEST(BoundedQueue, ClosedQueueDrainsThenEnds) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.push(7));
  queue.close();
  EXPECT_FALSE(queue.push(8));
  EXPECT_EQ(queue.pop(), 7);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(BoundedQueue, PopWaitsForAProducerAndKeepsOrder) {
  BoundedQueue<int> queue(4);
  std::thread producer([&] {
    for (int i = 0; i < 1000; ++i) queue.push(i);
    queue.close();
  });
  int expected = 0;
  while (auto item = queue.pop()) EXPECT_EQ(*item, expected++);
  producer.join();
  EXPECT_EQ(expected, 1000);
}

}  // namespace
}  // namespace mesh
