#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "common/identity/random.h"
#include "common/net/client.h"
#include "common/net/test_socket.h"
#include "common/wire/frame.h"
#include "common/wire/session_json.h"
#include "common/wire/token_codec.h"
#include "node/runtime/test_mesh.h"

namespace mesh {
namespace {

using std::chrono::seconds;

std::vector<TokenId> prompt_of(std::size_t length, TokenId first = 3) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < length; ++i)
    ids.push_back(static_cast<TokenId>((first + 7 * i) % FakeEngine::kVocab));
  return ids;
}

class NodeRuntimeTest : public testing::Test {
 protected:
  TestHead::Session session() {
    TestHead::Session session;
    session.id = random_id<SessionId>();
    session.secret = random_id<SessionSecret>();
    return session;
  }
  std::vector<LayerRange> stages() const { return {first_.layers(), middle_.layers(), last_.layers()}; }
  std::vector<TestNode*> route() { return {&first_, &middle_, &last_}; }

  const ModelIdentity identity_ = random_id<ModelIdentity>();
  TestHead head_{identity_};
  TestNode first_{identity_, {0, 2}};
  TestNode middle_{identity_, {2, 4}};
  TestNode last_{identity_, {4, 6}};
};

TEST_F(NodeRuntimeTest, BodiesThatNoSenderMakesAreRefusedByTheirLength) {
  const auto answer = [&](std::string_view path, std::uint64_t length) {
    net::TestSocket socket(first_.port());
    EXPECT_TRUE(socket.send("POST " + std::string(path) + " HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                            std::to_string(length) + "\r\nExpect: 100-continue\r\n\r\n"));
    return socket.read_until("\r\n").substr(0, 12);
  };
  constexpr std::uint64_t kFrame = 138'412'032, kOpening = 67'108'864;  // 132 MiB, 64 MiB
  EXPECT_EQ(answer(wire::kFramesRoute, kFrame + 1), "HTTP/1.1 413");
  EXPECT_EQ(answer(wire::kFramesRoute, kFrame), "HTTP/1.1 100");  // go on
  EXPECT_EQ(answer(wire::kOpenRoute, kOpening + 1), "HTTP/1.1 413");
}

TEST_F(NodeRuntimeTest, APromptFlowsThroughThreeNodesAndTokensComeStraightBack) {
  TestHead::Session session = this->session();
  head_.open(session, route());
  const auto prompt = prompt_of(300);
  EXPECT_EQ(head_.generate(session, first_, prompt, 12), FakeEngine::expected(prompt, stages(), 12));
  EXPECT_EQ(first_.node().figures().hop.sessions, 1u);
  ASSERT_EQ(first_.node().figures().links.size(), 1u);
  const auto raw_bytes = [this] { return first_.node().figures().links[0].raw_bytes; };
  constexpr std::uint64_t kWanted = (300 + 11) * FakeEngine::kHidden * 2;
  // A token comes back past the answer to its frame, which counts the bytes.
  for (const TimePoint end = SteadyClock().now() + std::chrono::seconds(5);
       raw_bytes() < kWanted && SteadyClock().now() < end;) {
    std::this_thread::yield();
  }
  EXPECT_EQ(raw_bytes(), kWanted);
}

TEST_F(NodeRuntimeTest, AnOpeningMakesTheConnectionsOfBothLanesBeforeAnythingIsSent) {
  TestHead::Session session = this->session();
  head_.open(session, route());
  const TimePoint deadline = SteadyClock().now() + seconds(20);
  for (TestNode* next : {&middle_, &last_}) {
    while (next->connections() < 2 && SteadyClock().now() < deadline) std::this_thread::yield();
    EXPECT_GE(next->connections(), 2u);
  }
  EXPECT_EQ(first_.node().figures().links[0].frames, 0u);
}

/// Holds whoever passes `point` until `steps` steps were computed, at most ten seconds.
class HoldsUntilComputed final : public FaultPoints {
 public:
  HoldsUntilComputed(FaultPoint point, int steps) : point_(point), steps_(steps) {}

  void pass(FaultPoint point) override {
    std::unique_lock lock(mutex_);
    if (point == FaultPoint::kAfterCompute) {
      ++computed_;
      changed_.notify_all();
    } else if (point == point_) {
      ++held_;
      in_time_ &= changed_.wait_for(lock, seconds(10), [this] { return computed_ >= steps_; });
    }
  }
  int held() const {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  bool in_time() const {
    const std::lock_guard lock(mutex_);
    return in_time_;
  }

 private:
  const FaultPoint point_;
  const int steps_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int computed_ = 0, held_ = 0;
  bool in_time_ = true;
};

TEST_F(NodeRuntimeTest, ChunksAreComputedWhileTheOneBeforeThemIsCodedAndSent) {
  for (const FaultPoint point : {FaultPoint::kBeforeCoding, FaultPoint::kBeforeSend}) {
    HoldsUntilComputed hold(point, 4);
    NodeOptions options;
    options.codec = wire::CodecPolicy::kSplit;
    options.faults = &hold;
    TestNode first(identity_, {0, 4}, 0, options);
    TestHead::Session session = this->session();
    head_.open(session, {&first, &last_});
    const auto prompt = prompt_of(4 * 128);
    EXPECT_EQ(head_.generate(session, first, prompt, 1),
              FakeEngine::expected(prompt, {first.layers(), last_.layers()}, 1));
    EXPECT_GT(hold.held(), 0);
    EXPECT_TRUE(hold.in_time()) << "chunk 2 waits for chunk 1 to be "
                                << (point == FaultPoint::kBeforeSend ? "sent" : "coded");
  }
}

TEST_F(NodeRuntimeTest, ChunksAreComputedWhileTheOneBeforeThemRunsDownstream) {
  TestHead::Session session = this->session();
  head_.open(session, route());
  middle_.engine().set_gate(false);
  const auto prompt = prompt_of(4 * 128);
  for (Position at = 0; at < 4 * 128; at += 128) {
    EXPECT_EQ(head_.send(session, first_, at, {prompt.begin() + at, prompt.begin() + at + 128}).code,
              wire::AnswerCode::kAccepted);
  }
  for (const TimePoint end = SteadyClock().now() + seconds(10);
       first_.node().figures().step_rows < 4 * 128 && SteadyClock().now() < end;) {
    std::this_thread::yield();
  }
  EXPECT_EQ(first_.node().figures().step_rows, 4u * 128);
  EXPECT_EQ(middle_.node().figures().steps, 0u);
  middle_.engine().set_gate(true);
  EXPECT_EQ(head_.wait_token(session.id, 4 * 128), FakeEngine::expected(prompt, stages(), 1)[0]);
}

TEST_F(NodeRuntimeTest, WhateverWaitsRunsInOneStep) {
  constexpr std::size_t kSessions = 8;
  std::vector<TestHead::Session> sessions;
  const auto prompt = prompt_of(5);
  for (std::size_t i = 0; i < kSessions; ++i) {
    sessions.push_back(session());
    head_.open(sessions.back(), route());
    head_.generate(sessions.back(), first_, prompt, 1);
  }
  const NodeFigures before = first_.node().figures();
  first_.engine().set_gate(false);
  const TokenId token = FakeEngine::expected(prompt, stages(), 1)[0];
  for (auto& one : sessions) {
    EXPECT_EQ(head_.send(one, first_, 5, {token}).code, wire::AnswerCode::kAccepted);
  }
  first_.engine().set_gate(true);
  const TokenId next = FakeEngine::expected(prompt, stages(), 2)[1];
  for (auto& one : sessions) EXPECT_EQ(head_.wait_token(one.id, 6), next);
  const NodeFigures after = first_.node().figures();
  EXPECT_EQ(after.step_segments - before.step_segments, kSessions);
  // The first may have begun alone; the rest waited at the gate and share a step.
  EXPECT_LE(after.steps - before.steps, 2u);
}

TEST_F(NodeRuntimeTest, ADeviceIsGivenTheNextStepWhileOneRuns) {
  TestNode first(identity_, {0, 4}, 0, {}, 2);
  const auto prompt = prompt_of(5);
  TestHead::Session one = session(), other = session();
  for (TestHead::Session* each : {&one, &other}) head_.open(*each, {&first, &last_});
  first.engine().set_gate(false);
  for (TestHead::Session* each : {&one, &other})
    EXPECT_EQ(head_.send(*each, first, 0, prompt).code, wire::AnswerCode::kAccepted);
  EXPECT_TRUE(first.engine().wait_begun(2, seconds(20)));
  EXPECT_EQ(first.node().figures().steps, 0u) << "neither has ended";
  first.engine().set_gate(true);
  const TokenId token = FakeEngine::expected(prompt, {first.layers(), last_.layers()}, 1)[0];
  for (TestHead::Session* each : {&one, &other}) EXPECT_EQ(head_.wait_token(each->id, 5), token);
}

TEST_F(NodeRuntimeTest, TextsAreTheSameOnDevicesThatAreGivenStepsAhead) {
  TestNode first(identity_, {0, 3}, 0, {}, 2), last(identity_, {3, 6}, 0, {}, 2);
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      TestHead::Session session = this->session();
      head_.open(session, {&first, &last});
      const auto prompt = prompt_of(5 + 40 * i);
      EXPECT_EQ(head_.generate(session, first, prompt, 20),
                FakeEngine::expected(prompt, {first.layers(), last.layers()}, 20));
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST_F(NodeRuntimeTest, ARestartedHopGetsItsInputAgainAndTheStreamGoesOn) {
  TestHead::Session session = this->session();
  head_.open(session, route());
  const auto prompt = prompt_of(200);
  const auto expected = FakeEngine::expected(prompt, stages(), 10);
  EXPECT_EQ(head_.generate(session, first_, prompt, 4), std::vector(expected.begin(), expected.begin() + 4));

  const int port = middle_.port();
  middle_.stop();
  TestNode restarted(identity_, {2, 4}, port);
  const std::vector<TestNode*> again{&first_, &restarted, &last_};
  head_.reopen(session, again);
  // Token 3 (at position 203) was never fed; the rest of the ids is in hop 0's cache.
  for (std::size_t i = 3; i + 1 < expected.size(); ++i) {
    const auto position = static_cast<Position>(prompt.size() + i);
    head_.send(session, first_, position, {expected[i]});
    EXPECT_EQ(head_.wait_token(session.id, position + 1), expected[i + 1]);
  }
  EXPECT_EQ(restarted.node().figures().step_rows, 203u + 6u);
  EXPECT_EQ(last_.node().figures().step_rows, 203u + 6u);
}

TEST_F(NodeRuntimeTest, ADeadNextHopIsReportedToTheHead) {
  TestHead::Session session = this->session();
  head_.open(session, route());
  middle_.stop();
  head_.send(session, first_, 0, prompt_of(3));
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + seconds(8);
  while (head_.reports().empty() && clock.now() < deadline) std::this_thread::yield();
  const auto reports = head_.reports();
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports[0].hop.session, session.id);
  EXPECT_EQ(reports[0].code, wire::ReportCode::kNextHopUnreachable);
}

TEST_F(NodeRuntimeTest, AFailedStepIsReportedAndOtherSessionsGoOn) {
  TestHead::Session bad = session();
  head_.open(bad, route());
  middle_.engine().fail_next_step(error(StatusCode::kInternal, "no such luck"));
  head_.send(bad, first_, 0, prompt_of(3));
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + seconds(8);
  while (head_.reports().empty() && clock.now() < deadline) std::this_thread::yield();
  ASSERT_FALSE(head_.reports().empty());
  EXPECT_EQ(head_.reports()[0].code, wire::ReportCode::kStepFailed);

  TestHead::Session good = session();
  head_.open(good, route());
  const auto prompt = prompt_of(9);
  EXPECT_EQ(head_.generate(good, first_, prompt, 3), FakeEngine::expected(prompt, stages(), 3));
}

TEST_F(NodeRuntimeTest, ClosingFreesTheCacheAtOnce) {
  TestHead::Session session = this->session();
  head_.open(session, route());
  head_.generate(session, first_, prompt_of(4), 2);
  EXPECT_EQ(first_.engine().open_caches(), 1u);
  for (TestNode* one : route()) one->node().close({session.id, session.generation});
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + seconds(1);
  while (first_.engine().open_caches() != 0 && clock.now() < deadline) std::this_thread::yield();
  EXPECT_EQ(first_.engine().open_caches(), 0u);
  EXPECT_EQ(first_.node().figures().hop.sessions, 0u);
  EXPECT_FALSE(first_.node().keys({session.id, 0}).has_value());
}

TEST_F(NodeRuntimeTest, ADroppedShardWaitsForItsSessionsAndThenRefusesNewOnes) {
  TestHead::Session session = this->session();
  head_.open(session, route());
  std::thread dropper([&] { EXPECT_TRUE(middle_.node().drop_shard(identity_, {2, 4}).ok()); });
  // Running sessions go on while it drains.
  const auto prompt = prompt_of(6);
  EXPECT_EQ(head_.generate(session, first_, prompt, 3), FakeEngine::expected(prompt, stages(), 3));
  for (TestNode* one : route()) one->node().close({session.id, session.generation});
  dropper.join();
  EXPECT_TRUE(middle_.node().shards().empty());
  const TestHead::Session late = this->session();
  EXPECT_EQ(middle_.node().open(head_.request(late, route(), 1)).code, wire::OpenCode::kShardNotHeld);
}

/// What a frame with one segment is answered by the middle node over HTTP.
class FrameTest : public NodeRuntimeTest {
 protected:
  FrameTest() {
    session_ = session();
    session_.generation = Generation{5};
    const wire::OpenRequest tail = head_.request(session_, {&middle_, &last_}, 1);
    wire::OpenRequest middle = head_.request(session_, {&middle_, &last_}, 0);
    middle.takes_ids = false;
    EXPECT_TRUE(last_.node().open(tail).opened());
    EXPECT_TRUE(middle_.node().open(middle).opened());
  }
  wire::Segment segment(std::uint64_t seq, Position start, std::uint32_t rows) const {
    wire::Segment segment;
    segment.session = session_.id;
    segment.identity = identity_;
    segment.generation = session_.generation;
    segment.seq = {seq};
    segment.range = middle_.layers();
    segment.start = start;
    segment.rows = rows;
    segment.hidden_size = FakeEngine::kHidden;
    segment.lane = wire::Lane::kBulk;
    segment.hidden = std::make_shared<const std::string>(rows * FakeEngine::kHidden * 2, '\x11');
    return segment;
  }
  std::string frame_of(const wire::Segment& segment, const SessionSecret& secret) {
    wire::FrameWriter writer;
    writer.add(segment, secret, wire::Codec::kZstd, codec_);
    return writer.finish();
  }
  net::Reply post(const std::string& body) {
    auto client = net::Client::make(middle_.url());
    EXPECT_TRUE(client.ok()) << client.status();
    auto reply = (*client)->post(std::string(wire::kFramesRoute), body, wire::kFrameContentType);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return *std::move(reply);
  }
  wire::SegmentAnswer answer(const wire::Segment& segment, const SessionSecret& secret) {
    const net::Reply reply = post(frame_of(segment, secret));
    EXPECT_EQ(reply.status, 202);
    const auto answers = wire::parse_segment_answers(reply.body);
    EXPECT_TRUE(answers.ok()) << reply.body;
    return answers.ok() ? answers->at(0) : wire::SegmentAnswer{};
  }

  TestHead::Session session_;
  wire::HiddenCodec codec_;
};

TEST_F(FrameTest, ADuplicateIsAcceptedAndNotComputedTwice) {
  EXPECT_EQ(answer(segment(1, 0, 4), session_.secret).code, wire::AnswerCode::kAccepted);
  EXPECT_EQ(answer(segment(1, 0, 4), session_.secret).code, wire::AnswerCode::kAccepted);
  EXPECT_EQ(answer(segment(2, 4, 2), session_.secret).code, wire::AnswerCode::kAccepted);
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + seconds(5);
  while (middle_.node().figures().step_rows < 6 && clock.now() < deadline) std::this_thread::yield();
  EXPECT_EQ(middle_.node().figures().step_rows, 6u);
  EXPECT_EQ(middle_.node().figures().hop.duplicates, 1u);
}

TEST_F(FrameTest, WrongMacsUnknownSessionsAndOtherGenerationsAreRefused) {
  EXPECT_EQ(answer(segment(1, 0, 1), random_id<SessionSecret>()).code, wire::AnswerCode::kBadMac);
  wire::Segment unknown = segment(1, 0, 1);
  unknown.session = random_id<SessionId>();
  EXPECT_EQ(answer(unknown, session_.secret).code, wire::AnswerCode::kUnknownSession);
  wire::Segment future = segment(1, 0, 1);
  future.generation = Generation{9};
  EXPECT_EQ(answer(future, session_.secret).code, wire::AnswerCode::kNotOpenedYet);
  wire::Segment past = segment(1, 0, 1);
  past.generation = Generation{4};
  EXPECT_EQ(answer(past, session_.secret).code, wire::AnswerCode::kStaleGeneration);
  EXPECT_EQ(middle_.node().figures().steps, 0u);
}

TEST_F(FrameTest, BeyondTheWindowIsRefusedWithTheCursor) {
  middle_.engine().set_gate(false);
  const wire::SegmentAnswer refused = answer(segment(10'000, 0, 1), session_.secret);
  EXPECT_EQ(refused.code, wire::AnswerCode::kWindow);
  EXPECT_EQ(refused.cursor.generation, session_.generation);
  middle_.engine().set_gate(true);
}

TEST_F(FrameTest, BrokenFramesGetOneClearErrorAndTheNodeGoesOn) {
  const std::string good = frame_of(segment(1, 0, 4), session_.secret);
  EXPECT_EQ(post("").status, 400);
  EXPECT_EQ(post("nonsense").status, 400);
  EXPECT_EQ(post(good.substr(0, good.size() - 1)).status, 400);
  EXPECT_EQ(post(good + "x").status, 400);
  EXPECT_EQ(answer(segment(1, 0, 4), session_.secret).code, wire::AnswerCode::kAccepted);
}

TEST_F(FrameTest, OpeningsNeedASignature) {
  auto client = net::Client::make(middle_.url());
  const auto reply = (*client)->post("/mesh/v1/sessions/open", "{}", net::kJsonType);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status, 401);
}

}  // namespace
}  // namespace mesh
