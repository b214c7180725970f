#include <deque>

#include "node/pipeline/hop_fixture_for_test.h"

namespace mesh::pipeline {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kBlock = 8 * 128;  // bytes of a block: 8 a token

/// Tails for sessions of one block each, on a device with room for two.
class HopRoom : public HopFixture {
 protected:
  HopRoom() { make(10 * kBlock); }
  void make(std::uint64_t host) {
    options.cache_bytes = 2 * kBlock;
    options.spill_bytes = host;
    room.emplace(options);
  }
  wire::OpenReply begin(std::uint8_t number, std::uint32_t tokens = 128) {
    wire::OpenRequest r = tail();
    r.session = session(number);
    r.max_tokens = tokens;
    return room->open(r, view(r), now);
  }
  void send(std::uint8_t number, std::uint64_t seq, Position start, std::uint32_t rows,
            Generation generation = {1}) {
    wire::Segment s = segment(seq, start, rows, generation);
    s.session = session(number);
    s.sample = false;
    ASSERT_EQ(room->accept(s, now).code, wire::AnswerCode::kAccepted);
  }
  void end(std::uint8_t number) { room->close({session(number), {9}}, now); }
  /// Runs what may run; the sessions of each step.
  std::string run() {
    std::string ran;
    while (true) {
      const auto work = room->next_step(now);
      const bool moved = note_orders();
      if (!work && !moved) return ran;
      if (!work) continue;
      for (const StepSegment& s : work->segments) ran += std::to_string(s.hop.session.bytes[0]) + " ";
      room->step_done(result(*work), now);
    }
  }
  /// Sessions 1 and 2 compute 100 rows each, a millisecond a step; copying them would take minutes.
  void compute_fast_and_copy_slowly() {
    for (std::uint8_t n = 1; n <= 2; ++n) {
      send(n, 1, 0, 100);
      const auto work = room->next_step(now);
      ASSERT_TRUE(work);
      now += milliseconds(1);
      room->step_done(result(*work), now);
    }
    note_orders();
    room->cache_moved({1, true, absl::OkStatus(), 1, seconds(1)});
  }
  /// Notes orders; copies are done at once unless `copies_wait`. Whether any were.
  bool note_orders() {
    for (const CacheOrder& order : room->take_orders()) {
      if (const auto* begins = std::get_if<BeginCache>(&order)) {
        orders += "begin " + std::to_string(begins->hop.session.bytes[0]) + "; ";
      } else if (const auto* spilled = std::get_if<SpillCache>(&order)) {
        orders += "spill; ";
        last_spilled = spilled->cache;
        moves.push_back({spilled->cache, true, absl::OkStatus(), 0, {}});
      } else if (const auto* restored = std::get_if<RestoreCache>(&order)) {
        orders += "restore; ";
        moves.push_back({restored->cache, false, absl::OkStatus(), 0, {}});
      } else if (std::holds_alternative<FreeCache>(order)) {
        orders += "free; ";
      }
    }
    if (copies_wait || moves.empty()) return false;
    while (!moves.empty()) finish_copy();
    return true;
  }
  void finish_copy() {
    room->cache_moved(moves.front());
    moves.pop_front();
  }
  std::string take_log() { return std::exchange(orders, ""); }
  wire::CursorEntry cursor_of(std::uint8_t number) { return room->cursors({{{session(number), 4}}}).hops[0]; }

  std::optional<HopTable> room;
  std::string orders;
  std::deque<CacheMoved> moves;
  bool copies_wait = false;
  CacheId last_spilled = 0;
};

TEST_F(HopRoom, WithoutHostMemoryAThirdSessionIsRefusedUntilOneIsClosed) {
  make(0);
  EXPECT_TRUE(begin(1).opened());
  EXPECT_TRUE(begin(2).opened());
  const auto refused = begin(3);
  EXPECT_EQ(refused.code, wire::OpenCode::kNoRoom);
  EXPECT_EQ(refused.message, "the cache of 128 tokens needs 1024 bytes, 0 of 2048 are free");
  end(1);
  EXPECT_TRUE(begin(3).opened());
}

TEST_F(HopRoom, ASessionThatEndsBehindItsRunningStepMakesRoomAtOnce) {
  make(0);
  begin(1);
  begin(2);
  send(1, 1, 0, 100);
  const auto work = room->next_step(now);
  ASSERT_TRUE(work);
  note_orders();
  take_log();
  end(1);
  EXPECT_TRUE(begin(3).opened());
  note_orders();
  EXPECT_EQ(take_log(), "free; begin 3; ") << "both after the step";
  room->step_done(result(*work), now);
  EXPECT_EQ(room->stats().cache_bytes, 2 * kBlock);
}

TEST_F(HopRoom, WhatShardsAndOthersTakeIsNotPromised) {
  make(0);
  room->set_cache_bytes(kBlock + 1);
  EXPECT_TRUE(begin(1).opened());
  EXPECT_EQ(begin(2).code, wire::OpenCode::kNoRoom);
}

TEST_F(HopRoom, WhatSessionsArePromisedIsKnownUntilTheyEnd) {
  for (std::uint8_t n = 1; n <= 3; ++n) ASSERT_TRUE(begin(n).opened());
  EXPECT_EQ(room->promised_bytes(), 2 * kBlock) << "the third waits for a turn";
  send(3, 1, 0, 100);
  EXPECT_EQ(room->wanted_bytes(), 3 * kBlock);
  end(1);
  EXPECT_EQ(room->promised_bytes(), kBlock);
  end(2);
  EXPECT_EQ(room->promised_bytes(), kBlock) << "else the third could never come in";
  end(3);
  EXPECT_EQ(room->promised_bytes(), 0u);
}

TEST_F(HopRoom, AnOpeningThatIsWithdrawnLeavesNothing) {
  ASSERT_TRUE(begin(1).opened());
  note_orders();
  take_log();
  ASSERT_TRUE(begin(2).opened());
  room->withdraw({session(2), 4});
  EXPECT_EQ(room->promised_bytes(), kBlock);
  EXPECT_EQ(room->stats().sessions, 1u);
  note_orders();
  EXPECT_EQ(take_log(), "free; ") << "it did not begin";
  EXPECT_TRUE(begin(2).opened()) << "in the same generation";
}

TEST_F(HopRoom, AThirdSessionWaitsForItsTurnAndTheOthersComeBack) {
  for (std::uint8_t n = 1; n <= 3; ++n) ASSERT_TRUE(begin(n).opened());
  for (std::uint8_t n = 1; n <= 3; ++n) send(n, 1, 0, 100);
  EXPECT_EQ(run(), "1 2 ");
  EXPECT_EQ(take_log(), "begin 1; begin 2; ");
  EXPECT_TRUE(cursor_of(3).waits_for_room);
  EXPECT_FALSE(cursor_of(1).waits_for_room);
  ASSERT_EQ(room->next_wakeup(), now + milliseconds(100));
  now += milliseconds(100);
  EXPECT_EQ(run(), "3 ");
  EXPECT_EQ(take_log(), "spill; begin 3; ");
  EXPECT_EQ(room->stats().spilled_caches, 1u);
  EXPECT_EQ(room->stats().cache_bytes, 2 * kBlock);
  EXPECT_FALSE(cursor_of(1).waits_for_room) << "it has no work";

  send(1, 2, 100, 1);
  EXPECT_EQ(run(), "1 ");
  EXPECT_EQ(take_log(), "spill; restore; ") << "2 has had its turn";
  send(2, 2, 100, 1);
  EXPECT_EQ(run(), "");
  EXPECT_TRUE(cursor_of(2).waits_for_room) << "1 and 3 have not";
  now += milliseconds(100);
  EXPECT_EQ(run(), "2 ");
  for (std::uint8_t n = 1; n <= 3; ++n) end(n);
  EXPECT_EQ(room->stats().cache_bytes + room->stats().spilled_bytes, 0u);
}

TEST_F(HopRoom, OthersRunWhileCachesAreCopied) {
  for (std::uint8_t n = 1; n <= 3; ++n) ASSERT_TRUE(begin(n).opened());
  for (std::uint8_t n = 1; n <= 3; ++n) send(n, 1, 0, 100);
  EXPECT_EQ(run(), "1 2 ");
  take_log();
  copies_wait = true;
  now += milliseconds(100);
  send(2, 2, 100, 1);
  EXPECT_EQ(run(), "2 ") << "3 begins when 1 has left";
  EXPECT_EQ(take_log(), "spill; begin 3; ");
  EXPECT_TRUE(cursor_of(3).waits_for_room);
  finish_copy();
  EXPECT_EQ(run(), "3 ");

  now += milliseconds(100);
  send(1, 2, 100, 1);
  send(3, 2, 100, 1);
  EXPECT_EQ(run(), "3 ");
  EXPECT_EQ(take_log(), "spill; restore; ") << "2 had no work";
  finish_copy();
  EXPECT_EQ(run(), "") << "2 has left, 1 is not back";
  EXPECT_TRUE(cursor_of(1).waits_for_room);
  finish_copy();
  EXPECT_EQ(run(), "1 ");
  EXPECT_FALSE(cursor_of(1).waits_for_room);
}

TEST_F(HopRoom, ACacheThatShallComeBackBeforeItHasLeftWaitsForBothCopies) {
  for (std::uint8_t n = 1; n <= 3; ++n) ASSERT_TRUE(begin(n).opened());
  for (std::uint8_t n = 1; n <= 3; ++n) send(n, 1, 0, 100);
  EXPECT_EQ(run(), "1 2 ");
  take_log();
  copies_wait = true;
  now += milliseconds(100);
  EXPECT_EQ(run(), "");
  end(2);
  send(1, 2, 100, 1);
  EXPECT_EQ(run(), "");
  EXPECT_EQ(take_log(), "spill; begin 3; free; restore; ");
  finish_copy();
  EXPECT_EQ(run(), "3 ");
  finish_copy();
  EXPECT_EQ(run(), "1 ");
}

TEST_F(HopRoom, ASessionThatEndsOnItsWayLeavesNothingBehind) {
  for (std::uint8_t n = 1; n <= 3; ++n) ASSERT_TRUE(begin(n).opened());
  for (std::uint8_t n = 1; n <= 3; ++n) send(n, 1, 0, 100);
  run();
  copies_wait = true;
  now += milliseconds(100);
  EXPECT_EQ(run(), "");
  end(3);
  finish_copy();
  send(1, 2, 100, 1);
  EXPECT_EQ(run(), "");
  end(1);
  finish_copy();
  send(2, 2, 100, 1);
  EXPECT_EQ(run(), "2 ");
  end(2);
  EXPECT_EQ(room->stats().cache_bytes + room->stats().spilled_bytes, 0u);
}

TEST_F(HopRoom, ARunningSessionLeavesWhenItsStepIsDone) {
  begin(1, 256);
  begin(2, 256);
  send(1, 1, 0, 100);
  send(1, 2, 100, 20);
  const auto work = room->next_step(now);
  ASSERT_TRUE(work);
  send(2, 1, 0, 100);
  now += seconds(1);
  EXPECT_EQ(room->next_step(now), std::nullopt) << "1 must leave first";
  EXPECT_TRUE(cursor_of(2).waits_for_room);
  room->step_done(result(*work), now);
  EXPECT_EQ(run(), "2 ");
  now += seconds(1);
  EXPECT_EQ(run(), "1 ");
}

TEST_F(HopRoom, ADroppedCacheIsReportedAndFilledAgainAfterTheHeadOpensAnew) {
  for (std::uint8_t n = 1; n <= 3; ++n) ASSERT_TRUE(begin(n).opened());
  compute_fast_and_copy_slowly();
  send(3, 1, 0, 100);
  now += seconds(1);
  take_log();
  EXPECT_EQ(run(), "3 ");
  EXPECT_EQ(take_log(), "free; begin 3; ");
  EXPECT_EQ(room->stats().dropped_caches, 1u);
  const auto report = room->next_report(now);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->report.code, wire::ReportCode::kCacheDropped);
  EXPECT_EQ(report->report.hop.session, session(1));
  EXPECT_EQ(cursor_of(1).cursor.next, 0u);
  wire::Segment more = segment(2, 100, 1);
  EXPECT_EQ(room->accept(more, now).code, wire::AnswerCode::kGap) << "until it is opened anew";

  wire::OpenRequest again = tail({2});
  again.max_tokens = 128;
  ASSERT_TRUE(room->open(again, view(again), now).opened());
  send(1, 1, 0, 100, {2});
  now += seconds(1);
  EXPECT_EQ(run(), "1 ");
}

TEST_F(HopRoom, HowFastTokensAreEmbeddedIsNoReasonToComputeThemAgain) {
  for (std::uint8_t n = 1; n <= 3; ++n) ASSERT_TRUE(begin(n).opened());
  wire::OpenRequest embeds = middle();
  embeds.session = session(9);
  embeds.range = {0, 0};
  embeds.takes_ids = true;
  ASSERT_TRUE(room->open(embeds, ShardView{kHidden, 0, 2000, false}, now).opened());
  wire::Segment ids = segment(1, 0, 100);
  ids.session = session(9);
  ids.range = {0, 0};
  ids.hidden = nullptr;
  ids.ids.assign(100, 7);
  send(1, 1, 0, 100);
  send(2, 1, 0, 100);
  ASSERT_EQ(room->accept(ids, now).code, wire::AnswerCode::kAccepted);
  while (const auto work = room->next_step(now)) {
    now += work->takes_ids ? milliseconds(1) : milliseconds(10'000);  // ten rows a second
    room->step_done(result(*work), now);
  }
  note_orders();
  room->cache_moved({1, true, absl::OkStatus(), kBlock, seconds(1)});
  take_log();
  send(3, 1, 0, 100);
  now += seconds(5);
  EXPECT_EQ(run(), "3 ");
  EXPECT_EQ(take_log(), "spill; begin 3; ") << "two seconds, there and back, instead of ten";
}

TEST_F(HopRoom, AFencedSessionIsNeverDropped) {
  begin(1);
  begin(2);
  compute_fast_and_copy_slowly();
  wire::OpenRequest fence = tail({2});
  fence.max_tokens = 128;
  fence.emit_from.reset();
  room->open(fence, view(fence), now);
  now += seconds(5);
  ASSERT_TRUE(begin(3).opened());
  send(3, 1, 0, 100);
  EXPECT_EQ(run(), "3 ");
  EXPECT_EQ(cursor_of(1).cursor.next, 100u);
  EXPECT_EQ(room->stats().spilled_caches, 1u);
}

TEST_F(HopRoom, WhatFoundNoHostMemoryIsOnTheDeviceStill) {
  for (std::uint8_t n = 1; n <= 3; ++n) begin(n);
  for (std::uint8_t n = 1; n <= 3; ++n) send(n, 1, 0, 100);
  run();
  now += milliseconds(100);
  run();
  room->cache_moved({last_spilled, true, error(StatusCode::kResourceExhausted, "none"), 0, {}});
  EXPECT_EQ(room->stats().spilled_caches, 0u);
  EXPECT_EQ(room->stats().cache_bytes, 3 * kBlock);
  send(1, 2, 100, 1);
  EXPECT_EQ(run(), "1 ");
}

TEST_F(HopRoom, ACacheThatShardsLeaveNoRoomForFailsWithTheNumbers) {
  begin(1);
  begin(2);
  ASSERT_TRUE(begin(3, 256).opened());
  room->set_cache_bytes(kBlock);
  send(3, 1, 0, 100);
  EXPECT_EQ(run(), "");
  const auto report = room->next_report(now);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->report.code, wire::ReportCode::kStepFailed);
  EXPECT_EQ(report->report.message, "the cache of 256 tokens needs 2048 bytes, of which shards leave 1024");
}

TEST_F(HopRoom, WhoWaitsComesBeforeANewSession) {
  for (std::uint8_t n = 1; n <= 3; ++n) begin(n);
  for (std::uint8_t n = 1; n <= 3; ++n) send(n, 1, 0, 100);
  run();
  take_log();
  end(1);
  begin(4);
  send(4, 1, 0, 100);
  EXPECT_EQ(run(), "3 ");
  EXPECT_EQ(take_log(), "free; begin 3; ");
}

}  // namespace
}  // namespace mesh::pipeline
