#include "tracker/head/head_fixture_for_test.h"

namespace mesh::head {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(HeadTableTest, OpensEveryHopOnceWithItsNeighboursAndTheTailsSetUp) {
  start();
  find_route();
  const auto openings = open_all();
  ASSERT_EQ(openings.size(), 3u);
  EXPECT_TRUE(openings[0].request.takes_ids);
  EXPECT_EQ(openings[0].request.next, hop(1, {2, 6}));
  EXPECT_EQ(openings[1].request.range, (LayerRange{2, 6}));
  EXPECT_FALSE(openings[1].request.takes_ids);
  EXPECT_FALSE(openings[1].request.tail);
  EXPECT_FALSE(openings[2].request.next);
  EXPECT_EQ(openings[2].request.tail->ids, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(openings[2].request.head_url, "http://head");
  EXPECT_EQ(openings[1].request.emit_from, 0u);
  EXPECT_EQ(openings[2].request.emit_from, 2u) << "the first token follows row 2";
  EXPECT_EQ(openings[0].request.max_tokens, 7u);
  EXPECT_EQ(openings[0].request.secret, openings[2].request.secret);
  EXPECT_FALSE(openings[0].request.secret.empty());
}

TEST_F(HeadTableTest, PrefillGoesInChunksWithinTheWindowAndOnlyTheLastIsSampled) {
  run(std::vector<TokenId>(70, 5));
  EXPECT_EQ(feed(), "0+32 32+32 64+6! ");
}

TEST_F(HeadTableTest, ALongPromptWaitsForCreditAndAsksForIt) {
  start(std::vector<TokenId>(2000, 5));
  find_route();
  open_all();
  const auto sent = take<SendIds>();
  EXPECT_EQ(sent.size(), 16u);
  for (const SendIds& ids : sent) {
    const wire::Segment& s = ids.segment;
    table.ids_answered(ids.ref, {s.key(), s.seq, wire::AnswerCode::kAccepted, {s.generation, {0}, 0}}, now);
  }
  EXPECT_TRUE(take<SendIds>().empty());
  wait();
  const auto asks = take<AskCursor>();
  ASSERT_EQ(asks.size(), 1u);
  table.cursor_answered(asks[0].ref, wire::CursorEntry{{id, 0}, true, {{1}, {4}, 128}, 0, 128}, now);
  EXPECT_EQ(take<SendIds>().size(), 4u);
}

TEST_F(HeadTableTest, TokensComeInOrderOnceAndEndAtMaxTokens) {
  run();
  feed();
  EXPECT_EQ(token(4, 11), wire::TokenCode::kNotAwaited);
  EXPECT_EQ(token(3, 10), wire::TokenCode::kTaken);
  EXPECT_EQ(token(3, 77), wire::TokenCode::kTaken) << "a repeat, dropped";
  EXPECT_EQ(feed(), "3+1! ");
  token(4, 11);
  token(5, 12);
  token(6, 13);
  std::vector<TokenId> text;
  for (const TokenReady& ready : take<TokenReady>()) text.push_back(ready.token);
  EXPECT_EQ(text, (std::vector<TokenId>{10, 11, 12, 13}));
  const auto finished = take<Finished>();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].reason, FinishReason::kLength);
  EXPECT_EQ(token(7, 14), wire::TokenCode::kUnknownSession);
}

TEST_F(HeadTableTest, AnEosTokenStops) {
  run();
  feed();
  token(3, 99);
  EXPECT_TRUE(take<TokenReady>().at(0).is_eos);
  EXPECT_EQ(take<Finished>().at(0).reason, FinishReason::kStop);
}

TEST_F(HeadTableTest, AtTheEndEveryHopIsClosedAndClosingIsRetried) {
  run();
  table.cancel(id, now);
  EXPECT_TRUE(take<Finished>().empty());
  auto closings = take<CloseHop>();
  ASSERT_EQ(closings.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(closings[i].ref.index, i) << "0 is the tracker's own node";
  table.close_answered(closings[0].ref, absl::OkStatus(), now);
  table.close_answered(closings[1].ref, absl::OkStatus(), now);
  table.close_answered(closings[2].ref, error(StatusCode::kUnavailable, "refused"), now);
  EXPECT_EQ(table.stats().sessions, 1u);
  wait();
  closings = take<CloseHop>();
  ASSERT_EQ(closings.size(), 1u);
  EXPECT_EQ(closings[0].to, hop(2, {6, 8}));
  table.close_answered(closings[0].ref, absl::OkStatus(), now);
  EXPECT_EQ(table.stats().sessions, 0u);
  EXPECT_FALSE(table.next_wakeup());
}

TEST_F(HeadTableTest, NoHopIsAskedToCloseAgainWhileItMayStillAnswer) {
  run();
  table.cancel(id, now);
  ASSERT_EQ(take<CloseHop>().size(), 3u);
  const TimePoint begin = now;
  std::vector<CloseHop> again;
  while (again.empty()) {
    wait();
    again = take<CloseHop>();
  }
  EXPECT_GT(now - begin, 2 * seconds(2)) << "a wait in the node's queue and a call, 2 s at most each";
  EXPECT_EQ(again.size(), 3u);
}

TEST_F(HeadTableTest, ClosingGivesUpWhenTheLeaseIsOver) {
  run();
  table.cancel(id, now);
  const TimePoint begin = now;
  while (table.stats().sessions > 0) {
    wait();
    for (const CloseHop& closing : take<CloseHop>()) {
      table.close_answered(closing.ref, error(StatusCode::kUnavailable, "refused"), now);
    }
  }
  EXPECT_EQ(now - begin, seconds(30));
}

TEST_F(HeadTableTest, LeasesAreRenewedInTime) {
  run();
  feed();
  int renewals = 0;
  const TimePoint begin = now;
  while (now < begin + seconds(31)) {
    wait();
    for (const AskCursor& ask : take<AskCursor>()) {
      // Busy: a different cursor each time.
      table.cursor_answered(
          ask.ref,
          wire::CursorEntry{
              {id, 0}, true, {{1}, {1}, 3}, 0, static_cast<Position>((now - begin) / milliseconds(10))},
          now);
    }
    renewals += static_cast<int>(take<RenewLease>().size());
  }
  EXPECT_EQ(renewals, 9) << "three hops, every 10 s";
  EXPECT_EQ(table.stats().failovers, 0u) << "a hop that advances is busy, not dead";
}

TEST_F(HeadTableTest, WithoutARouteItAsksAgainAndEndsAfterTheWait) {
  start();
  const TimePoint begin = now;
  std::size_t asked = 0;
  std::vector<Finished> finished;
  while (finished.empty()) {
    asked += take<RouteWanted>().size();
    wait();
    finished = take<Finished>();
  }
  EXPECT_EQ(finished[0].status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(now - begin, seconds(120));
  EXPECT_EQ(asked, 240u);
  EXPECT_EQ(table.stats().sessions, 0u);
}

TEST_F(HeadTableTest, ARouteThatDoesNotCoverTheRangeIsIgnored) {
  start();
  const auto wanted = take<RouteWanted>();
  table.route_found(id, wanted[0].request, {hop(0, {0, 2}), hop(1, {3, 8})}, now);
  table.route_found(id, wanted[0].request, {hop(0, {0, 2}), hop(1, {2, 7})}, now);
  table.route_found(id, wanted[0].request, {}, now);
  EXPECT_TRUE(take<OpenHop>().empty());
  table.route_found(id, wanted[0].request, {hop(0, {0, 0}), hop(1, {0, 8})}, now);
  EXPECT_EQ(take<OpenHop>().size(), 2u) << "a head with no layers of its own";
}

class HeadRecoveryTest : public HeadTableTest {
 protected:
  /// Prompt of three and one token: positions 0 … 3 were fed, the token at 4 is awaited.
  void run_to_position_four() {
    run();
    feed();
    token(3, 10);
    feed();
  }
  std::optional<Position> emit_from(const std::vector<OpenHop>& openings, std::size_t index) {
    return openings.at(index).request.emit_from;
  }
};

TEST_F(HeadRecoveryTest, ARestartedHopIsFilledByTheOneBeforeItAndTheStreamGoesOn) {
  run_to_position_four();
  table.report(node(1), {{id, 2}, {1}, wire::ReportCode::kNextHopRefuses, 0, "unknown session"}, now);
  const auto fence = open_all({{0, 4}, {1, 4}, {2, 0}});
  ASSERT_EQ(fence.size(), 3u);
  for (const OpenHop& opening : fence) {
    EXPECT_EQ(opening.request.generation, (Generation{2}));
    EXPECT_FALSE(opening.request.emit_from);
  }
  const auto resume = open_all();
  ASSERT_EQ(resume.size(), 3u);
  EXPECT_EQ(emit_from(resume, 2), 3u) << "the token at 4 follows row 3";
  EXPECT_EQ(emit_from(resume, 1), 0u) << "hop 2 begins with nothing";
  EXPECT_EQ(emit_from(resume, 0), 4u) << "hop 1 has all";
  EXPECT_EQ(feed(), "") << "so has hop 0";
  EXPECT_EQ(token(4, 11, {1}), wire::TokenCode::kStaleGeneration);
  EXPECT_EQ(token(4, 11, {2}), wire::TokenCode::kTaken);
  EXPECT_EQ(feed(), "4+1! ");
}

TEST_F(HeadRecoveryTest, WhenTheHopBeforeKeepsTooLittleTheRefillStartsFurtherUp) {
  run_to_position_four();
  table.report(node(1), {{id, 2}, {1}, wire::ReportCode::kNextHopRefuses, 0, "unknown session"}, now);
  open_all({{0, 4}, {1, 4}, {2, 0}}, {{0, 0}, {1, 3}});
  const auto resume = open_all();
  EXPECT_EQ(emit_from(resume, 1), 0u);
  EXPECT_EQ(emit_from(resume, 0), 0u) << "hop 1 must compute from 0 again; hop 0 still keeps that";
  EXPECT_EQ(feed(), "");
}

TEST_F(HeadRecoveryTest, InTheLastCaseTheRefillStartsAtTheHeadFromTokenIds) {
  run_to_position_four();
  table.report(node(1), {{id, 2}, {1}, wire::ReportCode::kNextHopRefuses, 0, "unknown session"}, now);
  open_all({{0, 4}, {1, 4}, {2, 0}}, {{0, 2}, {1, 3}});
  const auto resume = open_all();
  EXPECT_EQ(emit_from(resume, 0), 0u);
  EXPECT_EQ(feed(), "0+4! ");
}

TEST_F(HeadRecoveryTest, ATailThatForgotItsTokenComputesItsRowAgain) {
  run_to_position_four();
  table.report(node(1), {{id, 2}, {1}, wire::ReportCode::kNextHopRefuses, 0, ""}, now);
  open_all({{0, 4}, {1, 4}, {2, 4}}, {{0, 0}, {1, 0}, {2, 4}});
  EXPECT_EQ(emit_from(open_all(), 1), 3u);
}

TEST_F(HeadRecoveryTest, ALostTokenMessageIsSentAgainByTheTail) {
  run_to_position_four();
  table.report(node(1), {{id, 2}, {1}, wire::ReportCode::kNextHopRefuses, 0, ""}, now);
  open_all({{0, 4}, {1, 4}, {2, 4}}, {{0, 0}, {1, 0}, {2, 3}});
  const auto resume = open_all();
  EXPECT_EQ(emit_from(resume, 2), 3u);
  EXPECT_EQ(emit_from(resume, 1), 4u);
}

TEST_F(HeadRecoveryTest, AHopThatDoesNotAnswerIsReplacedForExactlyItsRange) {
  run_to_position_four();
  table.node_lost(node(1), now);
  const auto wanted = take<RouteWanted>();
  ASSERT_EQ(wanted.size(), 1u);
  EXPECT_EQ(wanted[0].range, (LayerRange{2, 6}));
  EXPECT_FALSE(wanted[0].first);
  EXPECT_EQ(wanted[0].excluded, std::vector<NodeId>{node(1)});
  table.route_found(id, wanted[0].request, {hop(3, {2, 4}), hop(4, {4, 6})}, now);
  open_all({{0, 4}, {1, 0}, {2, 0}, {3, 4}}, {{3, 3}});
  const auto resume = open_all();
  ASSERT_EQ(resume.size(), 4u);
  EXPECT_EQ(emit_from(resume, 0), 0u);
  EXPECT_EQ(emit_from(resume, 1), 0u);
  EXPECT_EQ(emit_from(resume, 2), 4u) << "it fills its cache and sends on from where hop 3 stands";
  EXPECT_EQ(table.route_of(id).size(), 4u);
  const auto closings = take<CloseHop>();
  ASSERT_EQ(closings.size(), 1u);
  EXPECT_EQ(closings[0].to, hop(1, {2, 6}));
  EXPECT_EQ(closings[0].request.generation, (Generation{1})) << "the node may come back with a higher one";
}

TEST_F(HeadRecoveryTest, AStepThatIsLateMakesItAskAllHopsAndTheSilentOneIsLost) {
  run_to_position_four();
  wait();
  std::vector<RouteWanted> wanted;
  while (wanted.empty()) {
    for (const AskCursor& ask : take<AskCursor>()) {
      if (ask.ref.index == 2) {
        table.cursor_answered(ask.ref, error(StatusCode::kUnavailable, "connection refused"), now);
      } else {
        table.cursor_answered(ask.ref, wire::CursorEntry{{id, 0}, true, {{1}, {2}, 4}, 0, 4}, now);
      }
    }
    wanted = take<RouteWanted>();
    if (wanted.empty()) wait();
  }
  EXPECT_EQ(wanted[0].range, (LayerRange{6, 8}));
}

TEST_F(HeadRecoveryTest, TheFirstHopThatHoldsWorkWithoutProgressIsLost) {
  run_to_position_four();
  const Position computed[] = {4, 3, 3};  // hop 1 holds row 3 and does not move
  std::vector<RouteWanted> wanted;
  while (wanted.empty()) {
    wait();
    for (const AskCursor& ask : take<AskCursor>()) {
      table.cursor_answered(ask.ref,
                            wire::CursorEntry{{id, 0}, true, {{1}, {2}, 4}, 0, computed[ask.ref.index]}, now);
    }
    wanted = take<RouteWanted>();
  }
  EXPECT_EQ(wanted[0].range, (LayerRange{2, 6}));
}

TEST_F(HeadRecoveryTest, MoreThanFiveFailoversAMinuteEndTheSession) {
  run_to_position_four();
  std::uint64_t generation = 1;
  for (; generation <= 6; ++generation) {
    EXPECT_TRUE(take<Finished>().empty());
    table.report(node(1), {{id, 2}, {generation}, wire::ReportCode::kNextHopRefuses, 0, "a mismatch"}, now);
    open_all({{0, 4}, {1, 4}, {2, 4}});
    open_all();
  }
  const auto finished = take<Finished>();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].status.code(), StatusCode::kUnavailable);
  EXPECT_NE(finished[0].status.message().find("a mismatch"), std::string::npos);
}

TEST_F(HeadRecoveryTest, ANodeWhoseStepsFailTwiceIsReplaced) {
  run_to_position_four();
  table.report(node(2), {{id, 6}, {1}, wire::ReportCode::kStepFailed, 0, "not finite"}, now);
  open_all({{0, 4}, {1, 4}, {2, 3}});
  open_all();
  EXPECT_TRUE(take<RouteWanted>().empty());
  table.report(node(2), {{id, 6}, {2}, wire::ReportCode::kStepFailed, 0, "not finite"}, now);
  EXPECT_EQ(take<RouteWanted>().at(0).range, (LayerRange{6, 8}));
}

TEST_F(HeadRecoveryTest, ACacheThatMadeRoomIsFilledAgainAndThatIsNoFailover) {
  run_to_position_four();
  Position awaited = 4;
  for (std::uint64_t generation = 1; generation <= 10; ++generation) {
    table.report(node(1), {{id, 2}, {generation}, wire::ReportCode::kCacheDropped, 0, "it made room"}, now);
    const auto fence = open_all({{0, awaited}, {1, 0}, {2, awaited}});
    ASSERT_EQ(fence.size(), 3u);
    const auto resume = open_all();
    EXPECT_EQ(emit_from(resume, 0), 0u) << "hop 1 is fed anew";
    EXPECT_EQ(emit_from(resume, 1), awaited) << "hop 2 has all";
    if (generation == 1) {
      ASSERT_EQ(token(awaited, 11, {generation + 1}), wire::TokenCode::kTaken);
      ++awaited;
      feed();
    } else {
      break;
    }
  }
  EXPECT_TRUE(take<Finished>().empty());
  EXPECT_EQ(table.stats().failovers, 0u);
  EXPECT_EQ(table.stats().refills, 2u);
}

TEST_F(HeadRecoveryTest, CachesThatMakeRoomBeforeAnyTokenComesAreFailovers) {
  run_to_position_four();
  for (std::uint64_t generation = 1; generation <= 7; ++generation) {
    EXPECT_TRUE(take<Finished>().empty());
    table.report(node(1), {{id, 2}, {generation}, wire::ReportCode::kCacheDropped, 0, "it made room"}, now);
    open_all({{0, 4}, {2, 4}});
    open_all();
  }
  const auto finished = take<Finished>();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_NE(finished[0].status.message().find("it made room"), std::string::npos);
}

TEST_F(HeadRecoveryTest, AHopWhoseCacheWaitsForItsTurnIsNotLostForTwoMinutes) {
  run_to_position_four();
  const Position computed[] = {4, 3, 3};
  const TimePoint began = now;
  std::vector<RouteWanted> wanted;
  while (wanted.empty()) {
    wait();
    for (const AskCursor& ask : take<AskCursor>()) {
      const std::size_t hop = ask.ref.index;
      table.cursor_answered(ask.ref,
                            wire::CursorEntry{{id, 0}, true, {{1}, {2}, 4}, 0, computed[hop], hop == 1}, now);
    }
    for (const RenewLease& renewal : take<RenewLease>()) table.renew_answered(renewal.ref, true, now);
    wanted = take<RouteWanted>();
  }
  EXPECT_GE(now - began, options.replacement_wait);
  EXPECT_LE(now - began, options.replacement_wait + seconds(20));
}

TEST_F(HeadRecoveryTest, ReportsOfStrangersAndOfOldGenerationsAreIgnored) {
  run_to_position_four();
  table.report(node(7), {{id, 2}, {1}, wire::ReportCode::kNextHopRefuses, 0, ""}, now);
  table.report(node(1), {{id, 6}, {1}, wire::ReportCode::kNextHopRefuses, 0, ""}, now);
  table.report(node(1), {{id, 2}, {0}, wire::ReportCode::kNextHopRefuses, 0, ""}, now);
  EXPECT_TRUE(take<OpenHop>().empty());
}

TEST_F(HeadRecoveryTest, EachGenerationHasASecretOfItsOwn) {
  run_to_position_four();
  const auto first = table.secret(id, {1});
  table.report(node(1), {{id, 2}, {1}, wire::ReportCode::kNextHopRefuses, 0, ""}, now);
  EXPECT_FALSE(table.secret(id, {1}));
  EXPECT_NE(table.secret(id, {2}), first);
}

TEST_F(HeadTableTest, AMeshWithoutRoomSaysSoSoon) {
  start();
  find_route();
  const TimePoint begin = now;
  for (const OpenHop& action : take<OpenHop>()) {
    wire::OpenReply reply = opened(action);
    if (action.ref.index == 1) reply.code = wire::OpenCode::kNoRoom;
    table.open_answered(action.ref, reply, now);
  }
  std::vector<Finished> finished;
  while (finished.empty()) {
    wait();
    finished = take<Finished>();
  }
  EXPECT_EQ(finished[0].status.code(), StatusCode::kResourceExhausted);
  EXPECT_LE(now - begin, seconds(3));
  EXPECT_EQ(take<CloseHop>().size() % 3, 0u);
}

TEST_F(HeadTableTest, AHopThatRefusedHasNothingToGiveBack) {
  start();
  find_route();
  for (const OpenHop& action : take<OpenHop>()) {
    wire::OpenReply reply = opened(action);
    if (action.ref.index == 1) reply.code = wire::OpenCode::kNoRoom;
    table.open_answered(action.ref, reply, now);
  }
  const auto wanted = take<RouteWanted>();
  ASSERT_EQ(wanted.size(), 1u);
  table.route_found(id, wanted[0].request, {hop(3, {2, 6})}, now);
  const auto left = take<CloseHop>();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].to.node, node(1));
  EXPECT_FALSE(left[0].frees_room);
  open_all();
  open_all();
  table.cancel(id, now);
  const auto closed = take<CloseHop>();
  ASSERT_EQ(closed.size(), 3u);
  for (const CloseHop& one : closed) EXPECT_TRUE(one.frees_room);
}

TEST_F(HeadTableTest, BadRequestsAreRefused) {
  StartRequest request;
  request.session = id;
  request.layers = 8;
  request.max_tokens = 1;
  EXPECT_EQ(table.start(request, now).code(), StatusCode::kInvalidArgument) << "no prompt";
  request.prompt = {1};
  request.chunk = 16;
  EXPECT_EQ(table.start(request, now).code(), StatusCode::kInvalidArgument);
  request.chunk = 128;
  EXPECT_TRUE(table.start(request, now).ok());
  EXPECT_EQ(table.start(request, now).code(), StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace mesh::head
