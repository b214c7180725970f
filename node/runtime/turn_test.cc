#include "node/runtime/turn.h"

#include <gtest/gtest.h>

#include <thread>

namespace mesh {
namespace {

TEST(Turn, IsRefusedToItsHolderAndGoesToWhoWaits) {
  Turn turn;
  ASSERT_TRUE(turn.try_lock());
  EXPECT_FALSE(turn.try_lock());
  bool had = false;
  std::thread waits([&] {
    const std::lock_guard lock(turn);
    had = true;
  });
  turn.unlock();
  waits.join();
  EXPECT_TRUE(had);
  EXPECT_TRUE(turn.try_lock());
}

}  // namespace
}  // namespace mesh
