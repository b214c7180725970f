#include "node/pipeline/hop_fixture_for_test.h"
#include "node/pipeline/replay_pace.h"

namespace mesh::pipeline {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using wire::AnswerCode;
using wire::Lane;
using wire::ReportCode;

class Steps : public HopFixture {
 protected:
  wire::Segment of(std::uint8_t number, std::uint64_t seq, Position start, std::uint32_t rows) {
    wire::Segment s = segment(seq, start, rows);
    s.session = session(number);
    return s;
  }
  void open_many(std::uint8_t count) {
    for (std::uint8_t i = 1; i <= count; ++i) {
      wire::OpenRequest r = middle();
      r.session = session(i);
      open(r);
    }
  }
};
class Sending : public HopFixture {};
class Tail : public HopFixture {};
class Recovery : public HopFixture {};

TEST_F(Steps, DecodeOfManySessionsSharesOneForward) {
  open_many(5);
  for (std::uint8_t i = 1; i <= 5; ++i) accept(of(i, 1, 0, 1));
  const auto work = table.next_step(now);
  ASSERT_TRUE(work);
  EXPECT_EQ(work->segments.size(), 5u);
  EXPECT_EQ(work->rows, 5u);
  EXPECT_FALSE(table.next_step(now)) << "one step of a session at a time";
}

TEST_F(Steps, ThoseThatMayComeAreWaitedForUntilTheRunningStepShouldEnd) {
  open_many(3);
  accept(of(1, 1, 0, 1));
  const auto first = table.next_step(now);
  accept(of(2, 1, 0, 1));
  EXPECT_EQ(table.ahead_from(), std::nullopt) << "3 may come, and no step has shown how long one takes";
  table.step_done(result(*first), now += milliseconds(4));
  EXPECT_EQ(table.ahead_from(), std::nullopt) << "no step runs: there is nothing to be ahead of";
  const auto second = table.next_step(now);
  EXPECT_EQ(table.ahead_from(), std::nullopt) << "nothing waits";
  accept(of(1, 2, 1, 1));
  EXPECT_EQ(table.ahead_from(), now + milliseconds(4) - microseconds(500));
  accept(of(3, 1, 0, 1));
  EXPECT_LE(table.ahead_from(), now) << "all others are here";
  const auto third = table.next_step(now);
  ASSERT_TRUE(third);
  EXPECT_EQ(third->segments.size(), 2u);
  // Begun while the second ran, the third is measured from that one's end.
  table.step_done(result(*second), now += milliseconds(4));
  table.step_done(result(*third), now += milliseconds(1));
  accept(of(1, 3, 2, 1));
  ASSERT_TRUE(table.next_step(now));
  accept(of(2, 2, 1, 1));
  EXPECT_EQ(table.ahead_from(), now + microseconds(750));
}

TEST_F(Steps, OneThatEmbedsSaysNothingOfHowLongOthersTake) {
  open_many(3);
  wire::OpenRequest embeds = middle();
  embeds.session = session(9);
  embeds.range = {0, 0};
  embeds.takes_ids = true;
  ASSERT_TRUE(open(embeds).opened());
  const auto embed = [&](std::uint64_t seq, Position start) {
    wire::Segment s = of(9, seq, start, 1);
    s.range = {0, 0};
    s.hidden = nullptr;
    s.ids = {7};
    ASSERT_EQ(accept(s), AnswerCode::kAccepted);
  };
  accept(of(1, 1, 0, 1));
  const auto layers = table.next_step(now);
  embed(1, 0);
  const auto within = table.next_step(now += milliseconds(1));
  ASSERT_TRUE(within && within->takes_ids);
  table.step_done(result(*within), now += milliseconds(2));
  table.step_done(result(*layers), now += milliseconds(5));
  embed(2, 1);
  const auto alone = table.next_step(now);
  ASSERT_TRUE(alone && alone->takes_ids);
  table.step_done(result(*alone), now += milliseconds(1));

  accept(of(1, 2, 1, 1));
  ASSERT_TRUE(table.next_step(now));
  accept(of(2, 1, 0, 1));
  EXPECT_EQ(table.ahead_from(), now + milliseconds(8) - microseconds(500));
}

TEST_F(Steps, SegmentsOfAnotherRangeOrModelNeverShareAForward) {
  open_many(1);
  wire::OpenRequest other = middle();
  other.session = session(2);
  other.range = {4, 6};
  other.next->range = {6, 12};
  open(other);
  accept(of(1, 1, 0, 1));
  wire::Segment s = of(2, 1, 0, 1);
  s.range = {4, 6};
  accept(s);
  const auto first = table.next_step(now);
  const auto second = table.next_step(now);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->range, (LayerRange{4, 8}));
  EXPECT_EQ(second->range, (LayerRange{4, 6}));
}

TEST_F(Steps, DecodeAndPrefillAlternateSoThatNeitherStarves) {
  open_many(4);
  for (std::uint64_t seq = 1; seq <= 3; ++seq) {
    const auto at = static_cast<Position>(seq - 1);
    accept(of(1, seq, at * 128, 128));
    accept(of(2, seq, at * 128, 128));
    accept(of(3, seq, at, 1));
    accept(of(4, seq, at, 1));
  }
  std::string lanes;
  while (const auto work = table.next_step(now)) {
    lanes += work->lane == Lane::kDecode ? 'd' : 'p';
    EXPECT_LE(work->rows, 128u);
    table.step_done(result(*work), now);
  }
  EXPECT_EQ(lanes,
            "dpdpdpppp"
            "")
      << "three decode steps for both sessions, six prefill steps";
}

TEST_F(Steps, AFailedStepRollsBackReportsAndLeavesOtherSessionsAlone) {
  open_many(2);
  accept(of(1, 1, 0, 1));
  accept(of(2, 1, 0, 1));
  const auto work = table.next_step(now);
  StepOutput output = result(*work);
  output.segments[0].status = error(StatusCode::kInternal, "hidden states are not finite");
  table.step_done(std::move(output), now);
  EXPECT_EQ(cursor().cursor.next, 0u);
  const auto report = table.next_report(now);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->report.code, ReportCode::kStepFailed);
  EXPECT_EQ(report->report.message, "hidden states are not finite");
  EXPECT_EQ(send_all(), "0+1 ") << "the other session's output";
  EXPECT_EQ(accept(of(1, 2, 1, 1)), AnswerCode::kGap);
}

TEST_F(Steps, ASegmentWhoseTimeIsUpIsNotComputed) {
  open(middle());
  wire::Segment s = segment(1, 0, 1);
  s.deadline_ms = 50;
  accept(s);
  now += milliseconds(51);
  EXPECT_FALSE(table.next_step(now));
  EXPECT_EQ(table.next_report(now)->report.code, ReportCode::kDeadline);
}

TEST_F(Sending, OutputsGoToTheNextHopWithItsRangeAndCountedSeqs) {
  open(middle());
  wire::Segment s = segment(1, 0, 2);
  s.deadline_ms = 1000;
  accept(s);
  now += milliseconds(400);
  run_steps();
  const auto frame = table.next_frame(now);
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->url, "http://next");
  EXPECT_EQ(frame->lane, Lane::kBulk);
  const wire::Segment& out = frame->segments[0].segment;
  EXPECT_EQ(out.range, (LayerRange{8, 12}));
  EXPECT_EQ(out.seq, (Seq{1}));
  EXPECT_TRUE(out.sample);
  EXPECT_EQ(out.deadline_ms, 600u) << "counted down";
  EXPECT_EQ(*out.hidden, row(0) + row(1));
}

TEST_F(Sending, SegmentsForOneNextHopShareAFrame) {
  for (std::uint8_t i = 1; i <= 3; ++i) {
    wire::OpenRequest r = middle();
    r.session = session(i);
    open(r);
    wire::Segment s = segment(1, 0, 1);
    s.session = session(i);
    accept(s);
  }
  run_steps();
  EXPECT_EQ(table.next_frame(now)->segments.size(), 3u);
}

TEST_F(Sending, AFailedFrameIsSentAgainWithTheSameSeqAndTheHeadIsToldAfterAWhile) {
  open(middle());
  accept(segment(1, 0, 1));
  run_steps();
  const TimePoint begin = now;
  int tries = 0;
  std::optional<OutReport> report;
  while (!report && now < begin + seconds(10)) {
    while (const auto frame = table.next_frame(now)) {
      ++tries;
      EXPECT_EQ(frame->segments[0].segment.seq, (Seq{1}));
      table.frame_failed(frame->id, error(StatusCode::kUnavailable, "connection refused"), now);
    }
    report = table.next_report(now);
    if (!report) now = *table.next_wakeup();
  }
  ASSERT_TRUE(report);
  EXPECT_EQ(report->report.code, ReportCode::kNextHopUnreachable);
  EXPECT_GE(now - begin, options.neighbour_patience);
  EXPECT_LE(tries, 10) << "the back-off doubles";
  now += options.retry_last;
  EXPECT_EQ(send_all(), "0+1 ") << "it is still wanted";
}

TEST_F(Sending, AnUnknownSessionStopsSendingAndTellsTheHead) {
  open(middle());
  accept(segment(1, 0, 1));
  run_steps();
  const auto frame = table.next_frame(now);
  table.frame_answered(frame->id, {answer(frame->segments[0].segment, AnswerCode::kUnknownSession)}, now);
  EXPECT_EQ(table.next_report(now)->report.code, ReportCode::kNextHopRefuses);
  now += seconds(5);
  EXPECT_FALSE(table.next_frame(now));
}

TEST_F(Sending, ADamagedFrameIsSentAgain) {
  open(middle());
  accept(segment(1, 0, 1));
  run_steps();
  const auto frame = table.next_frame(now);
  table.frame_answered(frame->id, {answer(frame->segments[0].segment, AnswerCode::kBadMac)}, now);
  EXPECT_FALSE(table.next_report(now));
  now += seconds(1);
  EXPECT_EQ(send_all(), "0+1 ");
}

TEST_F(Sending, NeverExceedsTheWindowAndAsksForCreditWhenBlocked) {
  open(middle());
  for (std::uint64_t seq = 1; seq <= 20; ++seq) {
    accept(segment(seq, static_cast<Position>(seq - 1), 1));
    run_steps();
  }
  std::size_t sent = 0;
  while (const auto frame = table.next_frame(now)) {
    std::vector<wire::SegmentAnswer> answers;
    for (const OutSegment& out : frame->segments)
      answers.push_back(answer(out.segment, AnswerCode::kAccepted));
    sent += answers.size();
    table.frame_answered(frame->id, answers, now);
  }
  EXPECT_EQ(sent, 16u);
  ASSERT_TRUE(table.next_wakeup());
  now = *table.next_wakeup();
  const auto ask = table.next_ask(now);
  ASSERT_TRUE(ask);
  EXPECT_EQ(ask->request.hops, (std::vector<wire::HopKey>{{session(1), 8}}));
  table.ask_answered(ask->id, {{{{session(1), 8}, true, {{1}, {10}, 10}, 0, 10}}}, now);
  EXPECT_EQ(send_all(), "16+1 17+1 18+1 19+1 ");
}

TEST_F(Tail, SendsTheTokenUntilTheHeadTakesIt) {
  open(tail());
  accept(segment(1, 0, 3));
  run_steps();
  const auto first = table.next_tokens(now);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->tokens[0].message, (wire::TokenMessage{session(1), {1}, 3, 103, -0.5f}));
  EXPECT_FALSE(table.next_tokens(now));
  now += options.token_repeat;
  const auto second = table.next_tokens(now);
  ASSERT_TRUE(second);
  table.tokens_answered(second->id, {{session(1), 3, wire::TokenCode::kTaken}}, now);
  now += seconds(5);
  EXPECT_FALSE(table.next_tokens(now));
}

TEST_F(Tail, TheNextSegmentEndsTheRepeats) {
  open(tail());
  accept(segment(1, 0, 3));
  run_steps();
  table.next_tokens(now);
  accept(segment(2, 3, 1));
  run_steps();
  const auto next = table.next_tokens(now);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->tokens.size(), 1u);
  EXPECT_EQ(next->tokens[0].message.position, 4u);
}

TEST_F(Tail, DoesNotSampleWhatTheHeadHasAlready) {
  wire::OpenRequest r = tail();
  r.emit_from = 4;
  open(r);
  accept(segment(1, 0, 4));
  EXPECT_FALSE(table.next_step(now)->segments[0].sample);
}

TEST_F(Tail, ReopenedItSendsItsLastTokenUnderTheNewGeneration) {
  open(tail());
  accept(segment(1, 0, 3));
  run_steps();
  const auto lost = table.next_tokens(now);
  wire::OpenRequest fence = tail({2});
  fence.emit_from.reset();
  const wire::OpenReply reply = open(fence);
  EXPECT_EQ(reply.cursor.next, 3u);
  EXPECT_EQ(reply.kept_from, 2u) << "the token after row 2 is kept";
  now += seconds(2);
  EXPECT_FALSE(table.next_tokens(now)) << "fenced";
  wire::OpenRequest resume = tail({2});
  resume.emit_from = 2;
  open(resume);
  const auto again = table.next_tokens(now);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->tokens[0].message, (wire::TokenMessage{session(1), {2}, 3, 103, -0.5f}));
}

TEST_F(Recovery, KeptOutputsAreSentAgainFromTheReceiversCursor) {
  open(middle());
  for (std::uint64_t seq = 1; seq <= 3; ++seq)
    accept(segment(seq, static_cast<Position>(seq - 1) * 100, 100));
  accept(segment(4, 300, 1));
  run_steps();
  EXPECT_EQ(send_all(), "300+1 0+100 100+100 200+100 ") << "decode has its own lane";
  wire::OpenRequest fence = middle({2});
  fence.emit_from.reset();
  open(fence);
  EXPECT_EQ(send_all(), "");
  wire::OpenRequest resume = middle({2});
  resume.emit_from = 150;
  open(resume);
  now += ReplayPace::kQuiet;
  const auto frame = table.next_frame(now);
  ASSERT_TRUE(frame);
  ASSERT_EQ(frame->segments.size(), 2u) << "small neighbours are merged up to 128 rows";
  EXPECT_EQ(frame->segments[0].segment.start, 150u);
  EXPECT_EQ(frame->segments[0].segment.seq, (Seq{1}));
  EXPECT_EQ(frame->segments[0].segment.generation, (Generation{2}));
  EXPECT_EQ(frame->segments[0].segment.hidden->substr(0, 4), row(150));
  EXPECT_EQ(frame->segments[1].segment.end(), 301u);
}

TEST_F(Recovery, AReplacementFillsItsCacheAndSendsOnlyFromEmitFrom) {
  wire::OpenRequest r = middle({4});
  r.emit_from = 130;
  open(r);
  accept(segment(1, 0, 128, {4}));
  run_steps();
  EXPECT_EQ(send_all(), "");
  accept(segment(2, 128, 5, {4}));
  run_steps();
  EXPECT_EQ(send_all(), "130+3 ");
  EXPECT_EQ(cursor().kept_from, 0u) << "all outputs are kept for the next recovery";
}

TEST_F(Recovery, AStepThatRanWhenTheGenerationRoseStillCounts) {
  open(middle());
  accept(segment(1, 0, 5));
  const auto work = table.next_step(now);
  wire::OpenRequest r = middle({2});
  r.emit_from = 0;
  EXPECT_EQ(open(r).cursor.next, 5u);
  EXPECT_EQ(cursor().computed, 0u);
  table.step_done(result(*work), now);
  EXPECT_EQ(send_all(), "0+5 ");
}

TEST_F(Recovery, OutputsBeyondTheBudgetAreDroppedOnceAcceptedAndTheHeadIsTold) {
  HopOptions small;
  small.kept_bytes = 4 * 2 * kHidden;  // four rows
  HopTable table_with_little(small);
  wire::OpenRequest r = middle();
  table_with_little.open(r, view(r), now);
  const auto compute = [&](std::uint64_t seq, Position start, std::uint32_t rows) {
    table_with_little.accept(segment(seq, start, rows), now);
    table_with_little.step_done(result(*table_with_little.next_step(now)), now);
  };
  compute(1, 0, 6);
  EXPECT_EQ(table_with_little.stats().kept_bytes, 6u * 4) << "not accepted by the next hop yet";
  const auto frame = table_with_little.next_frame(now);
  table_with_little.frame_answered(frame->id,
                                   {answer(frame->segments[0].segment, AnswerCode::kAccepted, {1})}, now);
  compute(2, 6, 1);
  EXPECT_EQ(table_with_little.stats().kept_bytes, 1u * 4);
  const auto report = table_with_little.next_report(now);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->report.code, ReportCode::kOutputsDropped);
  EXPECT_EQ(report->report.kept_from, 6u);
  // Asked for more than it keeps, it sends nothing until it has computed from there again.
  r.generation = {2};
  r.emit_from = 2;
  table_with_little.open(r, view(r), now);
  EXPECT_FALSE(table_with_little.next_frame(now));
  table_with_little.accept(segment(1, 2, 5, {2}), now);
  table_with_little.step_done(result(*table_with_little.next_step(now)), now);
  EXPECT_EQ(table_with_little.next_frame(now)->segments[0].segment.start, 2u);
}

}  // namespace
}  // namespace mesh::pipeline
