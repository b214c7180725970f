#include "node/pipeline/hop_fixture_for_test.h"

namespace mesh::pipeline {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using wire::AnswerCode;
using wire::OpenCode;

class Opening : public HopFixture {};
class Arrival : public HopFixture {};
class Ending : public HopFixture {};

TEST_F(Opening, TwiceIsHarmlessAndAnswersWithTheCursor) {
  EXPECT_EQ(open(middle()).code, OpenCode::kOpened);
  ASSERT_EQ(accept(segment(1, 0, 3)), AnswerCode::kAccepted);
  run_steps();
  const wire::OpenReply again = open(middle());
  EXPECT_EQ(again.code, OpenCode::kOpened);
  EXPECT_EQ(again.cursor, (wire::Cursor{{1}, {1}, 3}));
  EXPECT_EQ(again.kept_from, 0u);
  EXPECT_EQ(table.stats().sessions, 1u);
}

TEST_F(Opening, ALowerGenerationThanSeenIsRefused) {
  open(middle({5}));
  EXPECT_EQ(open(middle({4})).code, OpenCode::kStaleGeneration);
  EXPECT_EQ(table.keys({session(1), 4})->generation, (Generation{5}));
}

TEST_F(Opening, WithoutTheShardOrRoomOrAsWrongHopIsRefusedWithTheReason) {
  EXPECT_EQ(table.open(middle(), std::nullopt, now).code, OpenCode::kShardNotHeld);
  EXPECT_EQ(table.open(tail(), view(middle()), now).code, OpenCode::kBadRequest);
  wire::OpenRequest long_one = middle();
  long_one.max_tokens = 2001;
  EXPECT_EQ(open(long_one).code, OpenCode::kBadRequest);
  ShardView hungry = view(middle());
  hungry.cache_bytes_per_token = std::uint64_t{1} << 62;
  EXPECT_EQ(table.open(middle(), hungry, now).code, OpenCode::kNoRoom);
  hungry.cache_bytes_per_token = options.cache_bytes / 1024 + 1;  // 1,000 tokens take 8 blocks of 128
  const wire::OpenReply reply = table.open(middle(), hungry, now);
  EXPECT_EQ(reply.code, OpenCode::kNoRoom);
  EXPECT_NE(reply.message.find("are free"), std::string::npos) << reply.message;
  EXPECT_EQ(table.stats().sessions, 0u);
}

TEST_F(Opening, ADrainingNodeTakesNoNewSessionButReopensOldOnes) {
  open(middle());
  table.set_draining(true);
  EXPECT_EQ(open(middle({2})).code, OpenCode::kOpened);
  wire::OpenRequest other = middle();
  other.session = session(2);
  EXPECT_EQ(open(other).code, OpenCode::kDraining);
}

TEST_F(Opening, AHigherGenerationKeepsTheCacheAndStartsSeqAnew) {
  open(middle());
  accept(segment(1, 0, 3));
  run_steps();
  EXPECT_EQ(open(middle({2})).cursor, (wire::Cursor{{2}, {0}, 3}));
  EXPECT_EQ(accept(segment(1, 3, 1, {2})), AnswerCode::kAccepted);
}

TEST_F(Arrival, WithoutASessionOrAfterItsCloseIsRefused) {
  EXPECT_EQ(accept(segment(1, 0, 1)), AnswerCode::kUnknownSession);
  open(middle());
  table.close({session(1), {1}}, now);
  EXPECT_EQ(accept(segment(1, 0, 1)), AnswerCode::kClosed);
  EXPECT_EQ(open(middle()).code, OpenCode::kClosed);
  EXPECT_EQ(open(middle({2})).code, OpenCode::kOpened) << "the head may come back with a higher generation";
}

TEST_F(Arrival, OfAnotherGenerationIsRefused) {
  open(middle({2}));
  EXPECT_EQ(accept(segment(1, 0, 1, {1})), AnswerCode::kStaleGeneration);
  EXPECT_EQ(accept(segment(1, 0, 1, {3})), AnswerCode::kNotOpenedYet);
}

TEST_F(Arrival, ADuplicateIsAcceptedAndDropped) {
  open(middle());
  EXPECT_EQ(accept(segment(1, 0, 2)), AnswerCode::kAccepted);
  EXPECT_EQ(accept(segment(1, 0, 2)), AnswerCode::kAccepted);
  EXPECT_EQ(run_steps(), 1);
  EXPECT_EQ(accept(segment(1, 0, 2)), AnswerCode::kAccepted);
  EXPECT_EQ(run_steps(), 0);
  EXPECT_EQ(cursor().cursor.next, 2u) << "a duplicate never trims";
  EXPECT_EQ(table.stats().duplicates, 2u);
}

TEST_F(Arrival, AHigherSeqWaitsForTheOnesBefore) {
  open(middle());
  EXPECT_EQ(accept(segment(3, 4, 2)), AnswerCode::kAccepted);
  EXPECT_EQ(accept(segment(2, 2, 2)), AnswerCode::kAccepted);
  EXPECT_EQ(run_steps(), 0);
  EXPECT_EQ(accept(segment(1, 0, 2)), AnswerCode::kAccepted);
  EXPECT_EQ(run_steps(), 3);
  EXPECT_EQ(cursor().cursor, (wire::Cursor{{1}, {3}, 6}));
}

TEST_F(Arrival, BeyondTheWindowIsRefusedWithTheCursor) {
  open(middle());
  EXPECT_EQ(accept(segment(17, 16, 1)), AnswerCode::kWindow);
  EXPECT_EQ(accept(segment(16, 15, 1)), AnswerCode::kAccepted);
  EXPECT_EQ(accept(segment(1, 0, 1000)), AnswerCode::kAccepted);
  EXPECT_EQ(accept(segment(2, 1000, 1)), AnswerCode::kBadSegment) << "beyond the session's tokens";
}

TEST_F(Arrival, RowsBeyondTheWindowAreRefusedUntilSomeWereApplied) {
  wire::OpenRequest r = middle();
  r.max_tokens = 2000;
  open(r);
  EXPECT_EQ(accept(segment(1, 0, 1000)), AnswerCode::kAccepted);
  EXPECT_EQ(accept(segment(2, 1000, 25)), AnswerCode::kWindow);
  run_steps();
  EXPECT_EQ(accept(segment(2, 1000, 25)), AnswerCode::kAccepted);
}

TEST_F(Arrival, AGapIsRefused) {
  open(middle());
  const wire::SegmentAnswer answer = table.accept(segment(1, 5, 1), now);
  EXPECT_EQ(answer.code, AnswerCode::kGap);
  EXPECT_EQ(answer.cursor.next, 0u);
  EXPECT_EQ(accept(segment(1, 0, 1)), AnswerCode::kAccepted) << "the seq was not used up";
}

TEST_F(Arrival, AGapBehindAWaitingSegmentIsReportedToTheHead) {
  open(middle());
  accept(segment(2, 9, 1));
  EXPECT_EQ(accept(segment(1, 0, 2)), AnswerCode::kAccepted);
  const auto report = table.next_report(now);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->report.code, wire::ReportCode::kStepFailed);
  EXPECT_EQ(report->head_url, "http://head");
}

TEST_F(Arrival, OfAWrongShapeRangeOrIdentityIsRefused) {
  open(middle());
  wire::Segment s = segment(1, 0, 1);
  s.range.end = 7;
  EXPECT_EQ(accept(s), AnswerCode::kBadSegment);
  s = segment(1, 0, 1);
  s.hidden_size = 3;
  EXPECT_EQ(accept(s), AnswerCode::kBadSegment);
  s = segment(1, 0, 1);
  s.identity.bytes[0] = 1;
  EXPECT_EQ(accept(s), AnswerCode::kBadSegment);
  s = segment(1, 0, 1);
  s.hidden = nullptr;
  s.ids = {5};
  EXPECT_EQ(accept(s), AnswerCode::kBadSegment) << "ids where hidden states belong";
}

TEST_F(Arrival, ALowerStartOfANewSeqTrimsTheCacheFirst) {
  open(middle());
  accept(segment(1, 0, 10));
  run_steps();
  EXPECT_EQ(send_all(), "0+10 ");
  accept(segment(2, 6, 2));
  const auto work = table.next_step(now);
  ASSERT_TRUE(work);
  EXPECT_EQ(work->segments[0].start, 6u);
  EXPECT_EQ(cursor().cursor.next, 8u);
  table.step_done(result(*work), now);
  EXPECT_EQ(send_all(), "6+2 ");
}

TEST_F(Ending, ALeaseThatIsNotExtendedFreesEverything) {
  open(middle());
  accept(segment(1, 0, 4));
  run_steps();
  now += seconds(29);
  table.tick(now);
  EXPECT_EQ(table.stats().sessions, 1u);
  now += seconds(2);
  table.tick(now);
  const HopStats stats = table.stats();
  EXPECT_EQ(stats.sessions + stats.cache_bytes + stats.inbound_bytes + stats.kept_bytes, 0u);
  EXPECT_EQ(freed().size(), 1u);
  EXPECT_EQ(accept(segment(2, 4, 1)), AnswerCode::kUnknownSession);
}

TEST_F(Ending, FramesAndRenewalsExtendTheLease) {
  open(middle());
  now += seconds(20);
  accept(segment(1, 0, 1));
  now += seconds(20);
  EXPECT_TRUE(table.renew({{session(1)}, 30'000}, now).unknown.empty());
  now += seconds(20);
  table.tick(now);
  EXPECT_EQ(table.stats().sessions, 1u);
  EXPECT_EQ(table.renew({{session(1), session(9)}, 30'000}, now).unknown, std::vector<SessionId>{session(9)});
}

TEST_F(Ending, ACloseInTheMiddleOfAStepFreesTheCacheAndItsResultIsNobodys) {
  open(middle());
  accept(segment(1, 0, 4));
  const auto work = table.next_step(now);
  table.close({session(1), {1}}, now);
  EXPECT_EQ(freed(), std::vector<CacheId>{work->segments[0].cache}) << "an order for after the step";
  EXPECT_EQ(table.stats().cache_bytes, 0u);
  open(middle({2}));
  table.step_done(result(*work), now);
  EXPECT_EQ(cursor().cursor.next, 0u) << "it was of the session's cache before";
  EXPECT_FALSE(table.next_frame(now));
}

TEST_F(Ending, ACloseOfAnOlderGenerationChangesNothing) {
  open(middle({3}));
  table.close({session(1), {2}}, now);
  EXPECT_EQ(table.stats().sessions, 1u);
}

TEST_F(Ending, TwoRangesOfOneSessionAreTwoSessionsHere) {
  open(middle());
  wire::OpenRequest later = middle();
  later.range = {12, 16};
  open(later);
  EXPECT_EQ(table.stats().sessions, 2u);
  table.close({session(1), {1}}, now);
  EXPECT_EQ(table.stats().sessions, 0u);
}

}  // namespace
}  // namespace mesh::pipeline
