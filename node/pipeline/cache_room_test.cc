#include "node/pipeline/cache_room.h"

#include <gtest/gtest.h>

namespace mesh::pipeline {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Place = CacheRoom::Place;

/// A device with room for 100 bytes.
class CacheRoomTest : public testing::Test {
 protected:
  CacheRoom make(std::uint64_t host, HopFaults faults = {}) {
    return CacheRoom({.device_bytes = 100, .host_bytes = host}, faults);
  }
  /// On the device since `now`, with `tokens` tokens of a byte each.
  void add(CacheRoom& room, CacheId cache, std::uint64_t bytes, Position tokens) {
    room.add(cache, bytes, Place::kDevice, now);
    room.used(cache, tokens, tokens, now);
  }
  /// "2, 3 dropped" or "not yet".
  std::string leaving(const CacheRoom& room, CacheId cache) {
    const auto leaves = room.who_leaves(
        cache, now, [this](CacheId id) { return busy.contains(id); },
        [this](CacheId id) { return !fenced.contains(id); });
    if (!leaves) return "not yet";
    std::string text;
    for (const CacheRoom::Leaving& one : *leaves) {
      text += (text.empty() ? "" : ", ") + std::to_string(one.cache) + (one.drop ? " dropped" : "");
    }
    return text;
  }

  std::set<CacheId> busy, fenced;
  TimePoint now = TimePoint{} + std::chrono::hours(1);
};

TEST_F(CacheRoomTest, WithoutHostMemoryItTakesWhatFitsTheDevice) {
  CacheRoom room = make(0);
  EXPECT_TRUE(room.takes(100));
  EXPECT_FALSE(room.takes(101));
  add(room, 1, 60, 10);
  EXPECT_TRUE(room.takes(40));
  EXPECT_FALSE(room.takes(41));
  room.remove(1);
  EXPECT_TRUE(room.takes(100));
  EXPECT_FALSE(room.takes(~std::uint64_t{0}));
}

TEST_F(CacheRoomTest, WhatIsPromisedIsWhatTheDeviceMustLeaveForThoseThatWereTaken) {
  CacheRoom alone = make(0);
  EXPECT_EQ(alone.promised(), 0u);
  alone.add(1, 60, Place::kNowhere, now);
  alone.add(2, 30, Place::kNowhere, now);
  EXPECT_EQ(alone.promised(), 90u) << "without host memory all of them at once";

  CacheRoom room = make(200);
  for (CacheId id = 1; id <= 2; ++id) room.add(id, 40, Place::kNowhere, now);
  EXPECT_EQ(room.promised(), 40u) << "one after the other, the others in host memory";
  add(room, 3, 40, 10);
  add(room, 4, 40, 10);
  EXPECT_EQ(room.promised(), 80u) << "two are there";
  room.add(5, 20, Place::kNowhere, now);
  room.add(6, 30, Place::kNowhere, now);
  EXPECT_EQ(room.promised(), 90u) << "210, of which 200 − 2 · 40 find room in host memory";
  room.set_device_bytes(91);
  EXPECT_TRUE(room.takes(1));
  room.set_device_bytes(90);
  EXPECT_FALSE(room.takes(1)) << "90 is just what these need";
  EXPECT_EQ(room.waiting_bytes(), 0u);
  room.wait(5);
  room.wait(6);
  EXPECT_EQ(room.waiting_bytes(), 50u);
}

TEST_F(CacheRoomTest, HostMemoryTakesMoreButTwoOfTheLargestStayFree) {
  CacheRoom room = make(200);
  EXPECT_FALSE(room.takes(101)) << "alone it must fit the device";
  for (CacheId id = 1; id <= 5; ++id) room.add(id, 40, Place::kNowhere, now);
  // 100 + 200 − 2 · 40 = 220 for all.
  EXPECT_TRUE(room.takes(20));
  EXPECT_FALSE(room.takes(21));
  EXPECT_FALSE(make(79).takes(40) && make(79).takes(101));
  CacheRoom small = make(79);
  add(small, 1, 80, 1);
  EXPECT_FALSE(small.takes(40)) << "two of 80 would not fit";
}

TEST_F(CacheRoomTest, TheLeastRecentlyUsedWithoutWorkLeaveFirst) {
  CacheRoom room = make(300);
  add(room, 1, 40, 40);
  add(room, 2, 30, 30);
  add(room, 3, 30, 30);
  room.add(4, 50, Place::kNowhere, now);
  now += seconds(1);
  room.used(1, 40, 40, now);
  EXPECT_EQ(leaving(room, 4), "2, 3");
  busy = {2};
  EXPECT_EQ(leaving(room, 4), "3, 1");
  room.remove(3);
  EXPECT_EQ(leaving(room, 4), "1");
  room.remove(1);
  EXPECT_EQ(leaving(room, 4), "") << "there is room";
}

TEST_F(CacheRoomTest, NobodyLeavesBeforeItsTurnIsOver) {
  CacheRoom room = make(300);
  add(room, 1, 100, 100);
  room.add(2, 10, Place::kNowhere, now);
  room.wait(2);
  EXPECT_EQ(leaving(room, 2), "not yet");
  EXPECT_EQ(room.next_wakeup(now), now + milliseconds(100));
  now += milliseconds(100);
  EXPECT_EQ(leaving(room, 2), "1");
}

TEST_F(CacheRoomTest, ATurnIsWorthTheWay) {
  CacheRoom room = make(300);
  room.note_copy(1000, seconds(1));
  add(room, 1, 100, 100);
  now += seconds(1);
  room.leave(1);
  room.enter(1, now);
  room.add(2, 10, Place::kNowhere, now);
  room.wait(2);
  // There and back 0.2 s, eight times that.
  EXPECT_EQ(room.next_wakeup(now), now + milliseconds(1600));
}

TEST_F(CacheRoomTest, WhatIsCheaperToComputeAgainIsDropped) {
  CacheRoom room = make(300);
  add(room, 1, 100, 100);
  room.add(2, 10, Place::kNowhere, now);
  now += seconds(1);
  room.note_copy(1000, seconds(1));  // 0.2 s there and back
  EXPECT_EQ(leaving(room, 2), "1") << "nobody knows what computing takes";
  room.note_prefill(499, seconds(1));  // 100 tokens in 0.2004 s
  EXPECT_EQ(leaving(room, 2), "1");
  room.note_prefill(600, seconds(1));
  EXPECT_EQ(leaving(room, 2), "1 dropped");
  fenced = {1};
  EXPECT_EQ(leaving(room, 2), "1") << "what it promised must stay";
}

TEST_F(CacheRoomTest, WithoutHostMemoryLeftItIsDroppedWhateverThatCosts) {
  CacheRoom room = make(120);
  add(room, 1, 100, 100);
  room.add(2, 60, Place::kNowhere, now);
  now += seconds(1);
  room.leave(1);
  room.enter(2, now);
  room.used(2, 60, 60, now);
  now += seconds(1);
  EXPECT_EQ(leaving(room, 1), "2 dropped") << "20 bytes of host memory are left";
  fenced = {2};
  EXPECT_EQ(leaving(room, 1), "not yet");
}

TEST_F(CacheRoomTest, WaitersComeInTheOrderInWhichTheyBegan) {
  CacheRoom room = make(300);
  for (CacheId id = 1; id <= 3; ++id) room.add(id, 10, Place::kNowhere, now);
  room.wait(2);
  room.wait(1);
  room.wait(2);
  EXPECT_EQ(room.first_waiting(), 2u);
  room.enter(2, now);
  EXPECT_EQ(room.first_waiting(), 1u);
  EXPECT_TRUE(room.may_run(2));
  EXPECT_FALSE(room.may_run(1));
  room.remove(1);
  EXPECT_EQ(room.first_waiting(), std::nullopt);
}

TEST_F(CacheRoomTest, BytesFollowACacheWhereverItGoes) {
  CacheRoom room = make(300);
  add(room, 1, 50, 20);
  EXPECT_EQ(room.on_device(), 50u);
  room.leave(1);
  EXPECT_EQ(room.on_device(), 0u);
  EXPECT_EQ(room.on_host(), 20u);
  room.stayed(1);
  EXPECT_EQ(room.on_device(), 50u);
  EXPECT_EQ(room.on_host(), 0u);
  room.stayed(1);
  room.stayed(7);
  EXPECT_EQ(room.on_device(), 50u) << "only what left can have stayed";
  room.leave(1);
  room.remove(1);
  EXPECT_EQ(room.on_host() + room.on_device() + room.of_all(), 0u);
  EXPECT_EQ(room.caches_on_host(), 0u);
}

TEST_F(CacheRoomTest, ACacheLargerThanTheDeviceNeverComesIn) {
  CacheRoom room = make(300);
  room.add(1, 90, Place::kNowhere, now);
  room.set_device_bytes(80);
  EXPECT_EQ(leaving(room, 1), "not yet");
}

}  // namespace
}  // namespace mesh::pipeline
