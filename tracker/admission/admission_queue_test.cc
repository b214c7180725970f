#include "tracker/admission/admission_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mesh::tracker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using Ticket = AdmissionQueue::Ticket;
using Refused = AdmissionQueue::Refused;

const ModelIdentity kModel = *ModelIdentity::parse(std::string(64, '7'));
const ModelIdentity kOther = *ModelIdentity::parse(std::string(64, '8'));

class AdmissionQueueTest : public testing::Test {
 protected:
  AdmissionOptions options{.max_running = 2,
                           .depth = 4,
                           .max_per_key = 0,
                           .longest_wait = seconds(30),
                           .retry = milliseconds(500)};
  TimePoint now{seconds(1000)};
  std::optional<AdmissionQueue> made;

  AdmissionQueue& queue() {
    if (!made) made.emplace(options);
    return *made;
  }
  std::optional<Refusal> enter(Ticket ticket, const std::string& principal = "a",
                               const ModelIdentity& model = kModel) {
    return queue().enter({ticket, principal, model}, now);
  }
  std::vector<Ticket> admitted() {
    std::vector<Ticket> tickets;
    while (const auto ticket = queue().admit(now)) tickets.push_back(*ticket);
    return tickets;
  }
  /// Enters each and admits what may run after each.
  std::vector<Ticket> come(const std::vector<std::pair<Ticket, std::string>>& arrivals) {
    std::vector<Ticket> tickets;
    for (const auto& [ticket, principal] : arrivals) {
      EXPECT_EQ(enter(ticket, principal), std::nullopt);
      for (const Ticket one : admitted()) tickets.push_back(one);
    }
    return tickets;
  }
};

TEST_F(AdmissionQueueTest, RequestsRunAtOnceUpToTheLimitAndThenInTheOrderOfArrival) {
  EXPECT_THAT(come({{1, "a"}, {2, "a"}, {3, "a"}, {4, "a"}}), ElementsAre(1, 2));
  EXPECT_EQ(queue().running(), 2u);
  EXPECT_EQ(queue().waiting(), 2u);
  queue().leave(2, now);
  EXPECT_THAT(admitted(), ElementsAre(3));
}

TEST_F(AdmissionQueueTest, AFullQueueRefusesAndAPlaceThatFreesIsGivenAgain) {
  come({{1, "a"}, {2, "a"}, {3, "a"}, {4, "a"}, {5, "a"}, {6, "a"}});
  EXPECT_EQ(enter(7), Refusal::kQueueFull);
  queue().leave(4, now);  // its client left
  EXPECT_EQ(enter(8), std::nullopt);
}

TEST_F(AdmissionQueueTest, WithoutAQueueARequestRunsOrIsRefused) {
  options.depth = 0;
  EXPECT_THAT(come({{1, "a"}, {2, "b"}}), ElementsAre(1, 2));
  EXPECT_EQ(enter(3, "c"), Refusal::kQueueFull);
  queue().leave(1, now);
  EXPECT_THAT(come({{4, "c"}}), ElementsAre(4));
}

TEST_F(AdmissionQueueTest, PrincipalsTakeTurnsHoweverManyEachHas) {
  options.max_running = 1;
  options.depth = 8;
  come({{1, "a"}, {2, "a"}, {3, "a"}, {4, "a"}, {5, "b"}, {6, "b"}, {7, "c"}});
  std::vector<Ticket> order;
  for (Ticket running = 1; queue().running() > 0; running = order.empty() ? 0 : order.back()) {
    queue().leave(running, now);
    for (const Ticket ticket : admitted()) order.push_back(ticket);
    if (queue().running() == 0) break;
  }
  EXPECT_THAT(order, ElementsAre(5, 7, 2, 6, 3, 4));
}

TEST_F(AdmissionQueueTest, AKeyAtItsLimitIsRefusedAndOthersAreNot) {
  options.max_per_key = 3;
  come({{1, "a"}, {2, "a"}, {3, "a"}});
  EXPECT_EQ(enter(4, "a"), Refusal::kKeyLimit);
  EXPECT_EQ(enter(5, "b"), std::nullopt);
  queue().leave(1, now);
  EXPECT_EQ(enter(6, "a"), std::nullopt);
}

TEST_F(AdmissionQueueTest, AFullQueueOfOnePrincipalMakesPlaceForAnother) {
  come({{1, "a"}, {2, "a"}, {3, "a"}, {4, "a"}, {5, "a"}, {6, "a"}});
  EXPECT_EQ(enter(7, "b"), std::nullopt);
  EXPECT_THAT(queue().take_refused(now), ElementsAre(Refused{6, Refusal::kDisplaced}));
  EXPECT_EQ(enter(8, "b"), std::nullopt);
  EXPECT_THAT(queue().take_refused(now), ElementsAre(Refused{5, Refusal::kDisplaced}));
  EXPECT_EQ(enter(9, "b"), Refusal::kQueueFull) << "both have two";
  EXPECT_EQ(enter(10, "a"), Refusal::kQueueFull);
}

TEST_F(AdmissionQueueTest, AWaitEndsAfterItsTimeEvenIfItWasTried) {
  come({{1, "a"}, {2, "a"}, {3, "a"}});
  EXPECT_EQ(queue().next_wakeup(), now + seconds(30));
  now += seconds(29);
  queue().leave(1, now);
  EXPECT_THAT(admitted(), ElementsAre(3));
  queue().found_no_room(3, now);
  EXPECT_THAT(queue().take_refused(now), IsEmpty());
  now += seconds(1);
  EXPECT_THAT(queue().take_refused(now), ElementsAre(Refused{3, Refusal::kWaitOver}));
  EXPECT_EQ(queue().waiting(), 0u);
  EXPECT_EQ(queue().next_wakeup(), std::nullopt);
}

TEST_F(AdmissionQueueTest, WhatFoundNoRoomIsTheNextToBeTriedWhenASessionIsClosed) {
  options.max_running = 8;
  EXPECT_THAT(come({{1, "a"}, {2, "a"}, {3, "a"}}), ElementsAre(1, 2, 3));
  queue().opened(1, now);
  queue().found_no_room(3, now);
  queue().found_no_room(2, now);
  EXPECT_THAT(come({{4, "a"}}), IsEmpty());
  queue().leave(1, now);
  EXPECT_THAT(admitted(), IsEmpty()) << "its caches are not closed yet";
  queue().room_changed();
  EXPECT_THAT(admitted(), ElementsAre(2)) << "one at a time";
  queue().opened(2, now);
  EXPECT_THAT(admitted(), ElementsAre(3));
}

TEST_F(AdmissionQueueTest, WithoutNewsWhatFoundNoRoomIsTriedAgainAfterAWhile) {
  come({{1, "a"}, {2, "a"}});
  queue().opened(1, now);
  queue().found_no_room(2, now);
  EXPECT_THAT(admitted(), IsEmpty());
  EXPECT_EQ(queue().next_wakeup(), now + milliseconds(500));
  now += milliseconds(500);
  EXPECT_THAT(admitted(), ElementsAre(2));
}

TEST_F(AdmissionQueueTest, RoomThatCameDuringATryIsTriedAtOnce) {
  come({{1, "a"}, {2, "a"}});
  queue().opened(1, now);
  queue().room_changed();
  queue().found_no_room(2, now);
  EXPECT_THAT(admitted(), ElementsAre(2));
}

TEST_F(AdmissionQueueTest, ASmallRequestDoesNotOvertakeALargeOneThatFoundNoRoom) {
  options.max_running = 8;
  come({{1, "a"}, {2, "a"}});
  queue().opened(1, now);
  queue().found_no_room(2, now);
  for (Ticket small = 3; small < 6; ++small) EXPECT_THAT(come({{small, "a"}}), IsEmpty());
  queue().room_changed();
  EXPECT_THAT(admitted(), ElementsAre(2));
}

TEST_F(AdmissionQueueTest, APrincipalWhoseTryFailedHasItsTurnAgain) {
  options.max_running = 8;
  come({{1, "a"}, {2, "a"}, {3, "b"}});
  queue().opened(1, now);
  queue().found_no_room(2, now);
  queue().found_no_room(3, now);
  // b was never served, a was.
  queue().room_changed();
  EXPECT_THAT(admitted(), ElementsAre(3));
  queue().found_no_room(3, now);
  queue().room_changed();
  EXPECT_THAT(admitted(), ElementsAre(3));
  queue().opened(3, now);
  EXPECT_THAT(admitted(), ElementsAre(2));
}

TEST_F(AdmissionQueueTest, AModelShortOfRoomDoesNotHoldBackAnother) {
  options.max_running = 8;
  come({{1, "a"}, {2, "a"}});
  queue().opened(1, now);
  queue().found_no_room(2, now);
  EXPECT_TRUE(queue().is_short_of_room(kModel));
  EXPECT_EQ(enter(3, "a", kOther), std::nullopt);
  EXPECT_THAT(admitted(), ElementsAre(3));
  queue().leave(2, now);
  EXPECT_FALSE(queue().is_short_of_room(kModel));
}

TEST_F(AdmissionQueueTest, WhatFindsNoRoomAloneHoldsBackNobodyAndIsStillTried) {
  options.max_running = 8;
  come({{1, "a"}});
  for (int i = 0; i < 3; ++i) {
    queue().found_no_room(1, now);
    EXPECT_THAT(admitted(), IsEmpty());
    now += milliseconds(500);
    EXPECT_THAT(admitted(), ElementsAre(1)) << i;
  }
  queue().found_no_room(1, now);
  EXPECT_THAT(come({{2, "a"}, {3, "a"}}), ElementsAre(2, 3));
  queue().room_changed();
  EXPECT_THAT(admitted(), ElementsAre(1));
}

TEST_F(AdmissionQueueTest, AClientThatLeavesDuringItsTryLetsTheNextTry) {
  come({{1, "a"}, {2, "a"}, {3, "a"}});
  queue().opened(1, now);
  queue().found_no_room(2, now);
  queue().room_changed();
  EXPECT_THAT(admitted(), ElementsAre(2));
  queue().leave(2, now);
  EXPECT_THAT(admitted(), ElementsAre(3));
}

TEST_F(AdmissionQueueTest, OpeningTellsTheWaitOnce) {
  come({{1, "a"}});
  now += seconds(3);
  EXPECT_EQ(queue().opened(1, now), Duration(seconds(3)));
  EXPECT_EQ(queue().opened(1, now), std::nullopt);
  EXPECT_EQ(queue().opened(9, now), std::nullopt);
}

TEST_F(AdmissionQueueTest, RetryAfterFollowsTheMeasuredTimesWithinBounds) {
  EXPECT_EQ(queue().retry_after("a"), seconds(1)) << "nothing was measured";
  come({{1, "a"}});
  queue().opened(1, now);
  now += seconds(10);
  queue().leave(1, now);
  come({{2, "a"}, {3, "a"}, {4, "a"}});
  EXPECT_EQ(queue().retry_after("a"), seconds(10)) << "two run, one waits and one would: 10 s · 2 / 2";
  come({{5, "a"}, {6, "a"}, {7, "a"}});
  EXPECT_EQ(queue().retry_after("a"), seconds(25)) << "10 s · 5 / 2";
}

}  // namespace
}  // namespace mesh::tracker
