#include "tracker/runtime/head_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "common/wire/token_codec.h"

namespace mesh::tracker {
namespace {

using std::chrono::seconds;

const ModelIdentity kModel = *ModelIdentity::parse(std::string(64, '7'));
const NodeId kSelf = *NodeId::parse(std::string(64, '1'));

/// An embedded node that is the tail too: after each segment that samples it hands the head the next token,
/// 100 + its position, unless it is mute.
class FakeNode final : public Node {
 public:
  void attach(HeadSink& sink) { sink_ = &sink; }
  ~FakeNode() override { join(); }

  wire::OpenReply open(const wire::OpenRequest& request) override {
    const std::lock_guard lock(mutex_);
    generation_ = request.generation;
    last_open = request;
    wire::OpenReply reply;
    if (!request.emit_from && request.generation.value == 0) reply.code = wire::OpenCode::kBadRequest;
    if (refuse) reply.code = wire::OpenCode::kNoRoom;
    reply.message = refuse ? "no room for the caches" : "";
    reply.cursor.generation = request.generation;
    reply.window = {16, 1 << 20};
    return reply;
  }
  void close(const wire::CloseRequest&) override {
    const std::lock_guard lock(mutex_);
    ++closed_;
  }
  wire::CursorsReply cursors(const wire::CursorsRequest&) override { return {}; }
  wire::RenewReply renew(const wire::RenewRequest&) override { return {}; }
  std::vector<wire::SegmentAnswer> accept(std::vector<Arrival> arrivals) override {
    const std::lock_guard lock(mutex_);
    accepted_.push_back(arrivals);
    std::vector<wire::SegmentAnswer> answers;
    for (const Arrival& arrival : arrivals) {
      const wire::Segment& segment = arrival.segment;
      wire::SegmentAnswer answer;
      answer.hop = segment.key();
      answer.seq = segment.seq;
      answer.cursor = {segment.generation, segment.seq, segment.end()};
      answers.push_back(answer);
      if (!segment.sample || mute) continue;
      const wire::TokenMessage token{segment.session, segment.generation, segment.end(),
                                     static_cast<TokenId>(100 + segment.end()), -0.5f};
      senders_.emplace_back([sink = sink_, token] { sink->on_tokens({token}); });
    }
    return answers;
  }
  std::optional<pipeline::SessionKeys> keys(const wire::HopKey&) override { return std::nullopt; }
  Status load_shard(const std::shared_ptr<hub::Checkpoint>&, const ModelIdentity&, const engine::ShardSpec&,
                    const engine::ProgressCallback&) override {
    return absl::OkStatus();
  }
  Status drop_shard(const ModelIdentity&, const LayerRange&) override { return absl::OkStatus(); }
  std::vector<wire::ShardStatus> shards() const override { return {}; }
  StatusOr<engine::ModelProfile> profile(const ModelIdentity&) const override {
    return engine::ModelProfile{};
  }
  StatusOr<ForwardReply> forward(ForwardRequest) override { return ForwardReply{}; }
  NodeFigures figures() override { return {}; }
  engine::MemoryUse memory() const override { return {}; }
  engine::Engine& engine() override { std::abort(); }
  void set_draining(bool) override {}
  void wait_idle(Duration) override {}
  void stop() override {}

  int closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  /// The segments of each call of accept().
  std::vector<std::vector<Arrival>> accepted() const {
    const std::lock_guard lock(mutex_);
    return accepted_;
  }
  Generation generation() const {
    const std::lock_guard lock(mutex_);
    return generation_;
  }
  void join() {
    std::vector<std::thread> senders;
    {
      const std::lock_guard lock(mutex_);
      senders.swap(senders_);
    }
    for (std::thread& sender : senders) sender.join();
  }

  std::atomic<bool> refuse = false;
  bool mute = false;
  wire::OpenRequest last_open;

 private:
  HeadSink* sink_ = nullptr;
  mutable std::mutex mutex_;
  Generation generation_;
  int closed_ = 0;
  std::vector<std::vector<Arrival>> accepted_;
  std::vector<std::thread> senders_;
};

class FakeRoutes final : public Routes {
 public:
  StatusOr<std::vector<wire::HopAddress>> find(const head::RouteWanted&) override {
    if (!route.ok()) return route;
    std::vector<wire::HopAddress> hops;
    for (std::uint32_t begin = 0; begin < 4; begin += 4 / stages)
      hops.push_back({kSelf, "http://127.0.0.1:1", {begin, begin + 4 / stages}});
    return hops;
  }
  std::optional<PublicKey> key_of(const NodeId&) override { return std::nullopt; }
  wire::Freshness freshness_of(const NodeId& node) override { return {node, {}}; }
  Status available(const ModelIdentity&) override { return covered; }
  std::optional<NoFit> find_room(const ModelIdentity&, std::uint64_t tokens, std::uint64_t) override {
    if (no_fit && tokens > no_fit->most_tokens) return no_fit;
    return std::nullopt;
  }

  Status route;
  Status covered;
  std::optional<NoFit> no_fit;
  std::uint32_t stages = 1;
};

class HeadLoopTest : public testing::Test {
 protected:
  void begin(AdmissionOptions admission = {}) {
    HeadLoop::Options options;
    options.head.head_url = "http://127.0.0.1:1";
    options.self = kSelf;
    options.admission = admission;
    options.layer_counts[kModel] = 4;
    loop = std::make_unique<HeadLoop>(std::move(options), routes, peers, log::Logger::silent());
    node.attach(*loop);
    loop->run(node);
  }
  void TearDown() override {
    node.join();
    if (loop) loop->stop();
    node.join();
  }
  static gateway::Ask question(std::uint32_t max_tokens = 3) {
    gateway::Ask ask;
    ask.identity = kModel;
    ask.prompt = {5, 6, 7};
    ask.max_tokens = max_tokens;
    ask.eos_ids = {1};
    return ask;
  }
  static TimePoint soon() { return SteadyClock().now() + seconds(20); }
  void wait_for_close() {
    while (node.closed() == 0 && SteadyClock().now() < limit) std::this_thread::yield();
    EXPECT_GE(node.closed(), 1);
    expect_sessions(0);
  }
  // The loop counts when a batch has settled: a moment after its answers have their events.
  void expect_sessions(std::size_t count) {
    while (loop->sessions() != count && SteadyClock().now() < limit) std::this_thread::yield();
    EXPECT_EQ(loop->sessions(), count);
  }
  void expect_waiting(std::size_t count) {
    while (loop->waiting() != count && SteadyClock().now() < limit) std::this_thread::yield();
    EXPECT_EQ(loop->waiting(), count);
  }

  static Status end_of(const StatusOr<std::shared_ptr<gateway::Answer>>& answer) {
    if (!answer.ok()) return answer.status();
    const auto event = (*answer)->next(soon());
    const auto* end = event ? std::get_if<gateway::End>(&*event) : nullptr;
    return end != nullptr ? end->status : error(StatusCode::kInternal, "no end came");
  }

  std::vector<Arrival> wait_for_segments(std::size_t count) {
    std::vector<Arrival> all;
    while (all.size() < count && SteadyClock().now() < limit) {
      all.clear();
      for (const auto& call : node.accepted()) all.insert(all.end(), call.begin(), call.end());
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }
  /// How many segments each call brings after the tokens of four sessions came in one message.
  std::vector<std::size_t> groups_after_four_tokens() {
    node.mute = true;
    begin();
    std::vector<StatusOr<std::shared_ptr<gateway::Answer>>> answers;
    for (int i = 0; i < 4; ++i) answers.push_back(loop->ask(question()));
    std::vector<wire::TokenMessage> tokens;
    for (const Arrival& prompt : wait_for_segments(4)) {
      const wire::Segment& segment = prompt.segment;
      tokens.push_back({segment.session, segment.generation, segment.end(), TokenId{50}, 0});
    }
    const std::size_t before = node.accepted().size();
    loop->on_tokens(tokens);
    wait_for_segments(8);
    std::vector<std::size_t> sizes;
    for (const auto& call : node.accepted()) sizes.push_back(call.size());
    return {sizes.begin() + static_cast<std::ptrdiff_t>(before), sizes.end()};
  }

  const TimePoint limit = soon();
  PeerCalls peers{{.threads = 1}, std::make_shared<const KeyPair>(KeyPair::generate())};
  FakeRoutes routes;
  FakeNode node;
  std::unique_ptr<HeadLoop> loop;
};

TEST_F(HeadLoopTest, TokensComeInOrderAndTheSessionIsClosed) {
  begin();
  const auto answer = loop->ask(question());
  ASSERT_TRUE(answer.ok()) << answer.status();
  for (const TokenId wanted : {103, 104, 105}) {
    const auto event = (*answer)->next(soon());
    ASSERT_TRUE(event && std::holds_alternative<gateway::Token>(*event));
    EXPECT_EQ(std::get<gateway::Token>(*event).id, wanted);
  }
  const auto end = (*answer)->next(soon());
  ASSERT_TRUE(end && std::holds_alternative<gateway::End>(*end));
  EXPECT_TRUE(std::get<gateway::End>(*end).status.ok());
  EXPECT_EQ(std::get<gateway::End>(*end).reason, gateway::EndReason::kLength);
  wait_for_close();
}

TEST_F(HeadLoopTest, TokensThatComeTogetherGoOnTogether) {
  EXPECT_EQ(groups_after_four_tokens(), (std::vector<std::size_t>{4}));
}

TEST_F(HeadLoopTest, SessionsTravelInAsManyGroupsAsThereAreStages) {
  routes.stages = 2;
  EXPECT_EQ(groups_after_four_tokens(), (std::vector<std::size_t>{2, 2}));
}

TEST_F(HeadLoopTest, InterruptedAnswerWakesItsReaderWhoClosesTheSession) {
  node.mute = true;
  begin();
  auto answer = loop->ask(question());
  ASSERT_TRUE(answer.ok());
  while (node.generation().value == 0 && SteadyClock().now() < limit) std::this_thread::yield();
  std::thread leaver([&] { (*answer)->interrupt(); });
  EXPECT_FALSE((*answer)->next(soon()));
  leaver.join();
  EXPECT_EQ(node.closed(), 0) << "who interrupts has no time for the head's work";
  (*answer)->close();
  wait_for_close();
}

TEST_F(HeadLoopTest, DroppedAnswerClosesTheSession) {
  node.mute = true;
  begin();
  auto answer = loop->ask(question());
  ASSERT_TRUE(answer.ok());
  while (node.generation().value == 0 && SteadyClock().now() < limit) std::this_thread::yield();
  answer->reset();
  wait_for_close();
}

TEST_F(HeadLoopTest, WithoutCoverageNothingBegins) {
  routes.covered = error(StatusCode::kUnavailable, "layers are missing");
  begin();
  EXPECT_EQ(loop->ask(question()).status().code(), StatusCode::kUnavailable);
  expect_sessions(0);
}

TEST_F(HeadLoopTest, AFirstRouteThatIsNotThereEndsTheAnswerAtOnce) {
  routes.route = error(StatusCode::kUnavailable, "no copy");
  begin();
  const auto answer = loop->ask(question());
  ASSERT_TRUE(answer.ok());
  const auto end = (*answer)->next(soon());
  ASSERT_TRUE(end && std::holds_alternative<gateway::End>(*end));
  EXPECT_EQ(std::get<gateway::End>(*end).status.code(), StatusCode::kUnavailable);
}

TEST_F(HeadLoopTest, WhatFindsNoRoomIsAnsweredWhenThereIsSome) {
  node.refuse = true;
  begin({.retry = std::chrono::milliseconds(5)});
  const auto answer = loop->ask(question());
  ASSERT_TRUE(answer.ok());
  while (node.closed() == 0 && SteadyClock().now() < limit) std::this_thread::yield();
  node.refuse = false;
  const auto event = (*answer)->next(soon());
  ASSERT_TRUE(event && std::holds_alternative<gateway::Token>(*event));
  EXPECT_EQ(std::get<gateway::Token>(*event).id, 103);
}

TEST_F(HeadLoopTest, AWaitThatIsOverSaysWhatWasLacking) {
  node.refuse = true;
  begin({.longest_wait = std::chrono::milliseconds(50)});
  const Status status = end_of(loop->ask(question()));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(message_of(status)), testing::HasSubstr("no room for the caches"));
  expect_waiting(0);
}

TEST_F(HeadLoopTest, AnswersBeyondTheLimitWaitUntilOneEnds) {
  node.mute = true;
  begin({.max_running = 1, .depth = 1});
  auto first = loop->ask(question());
  const auto second = loop->ask(question());
  expect_waiting(1);
  EXPECT_EQ(end_of(loop->ask(question())).code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE((*second)->next(SteadyClock().now()));
  node.mute = false;
  first->reset();
  const auto event = (*second)->next(soon());
  EXPECT_TRUE(event && std::holds_alternative<gateway::Token>(*event));
}

TEST_F(HeadLoopTest, AClientThatLeavesTheQueueIsGoneAtOnce) {
  node.mute = true;
  begin({.max_running = 1});
  const auto first = loop->ask(question());
  const auto second = loop->ask(question());
  expect_waiting(1);
  (*second)->close();
  expect_waiting(0);
  expect_sessions(1);
}

TEST_F(HeadLoopTest, AKeyAtItsLimitIsRefused) {
  node.mute = true;
  begin({.max_per_key = 1});
  const auto first = loop->ask(question());
  EXPECT_EQ(end_of(loop->ask(question())).code(), StatusCode::kResourceExhausted);
  auto other = question();
  other.principal = "key-2";
  const auto second = loop->ask(std::move(other));
  EXPECT_FALSE((*second)->next(SteadyClock().now()));
  expect_sessions(2);
}

TEST_F(HeadLoopTest, WhatCanNeverFitIsRefusedWithTheNumbersBeforeAnythingIsOpened) {
  routes.no_fit = NoFit{4, {0, 4}, kSelf, 5000, 1234};
  begin();
  auto ask = question(3);
  ask.length_asked = true;
  const Status status = loop->ask(ask).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  for (const char* number : {"6 tokens", "5000", "1234", "the tracker", "max_tokens to 1"}) {
    EXPECT_THAT(std::string(message_of(status)), testing::HasSubstr(number));
  }
  EXPECT_EQ(node.generation().value, 0u);
}

TEST_F(HeadLoopTest, AnAnswerOfNoAskedLengthIsAsLongAsFits) {
  node.mute = true;
  routes.no_fit = NoFit{4, {0, 4}, kSelf, 5000, 1234};
  begin();
  const auto answer = loop->ask(question(1000));
  ASSERT_TRUE(answer.ok()) << answer.status();
  wait_for_segments(1);
  EXPECT_EQ(node.last_open.max_tokens, 4u) << "3 of the prompt";
}

TEST_F(HeadLoopTest, DrainingEndsThoseThatWaitAndLetsTheOthersGoOn) {
  node.mute = true;
  begin({.max_running = 1});
  const auto first = loop->ask(question());
  const auto second = loop->ask(question());
  loop->drain();
  EXPECT_EQ(end_of(second).code(), StatusCode::kUnavailable);
  EXPECT_EQ(loop->ask(question()).status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE((*first)->next(SteadyClock().now()));
  expect_sessions(1);
}

TEST_F(HeadLoopTest, ATokenWithAWrongMacIsRefusedAndChangesNothing) {
  node.mute = true;
  begin();
  auto answer = loop->ask(question());
  ASSERT_TRUE(answer.ok());
  while (node.generation().value == 0 && SteadyClock().now() < limit) std::this_thread::yield();
  wire::SignedToken forged;
  forged.message = {node.last_open.session, node.generation(), 3, 42, -1};
  net::Request request;
  request.body = wire::encode_tokens(std::vector<wire::SignedToken>{forged});
  net::Response response;
  for (const net::Route& route : loop->routes()) {
    if (route.pattern == wire::kTokensRoute) response = route.handler(request);
  }
  const auto answers = wire::parse_token_answers(response.body);
  ASSERT_TRUE(answers.ok()) << response.body;
  EXPECT_EQ(answers->at(0).code, wire::TokenCode::kBadMac);
  EXPECT_FALSE((*answer)->next(SteadyClock().now()));
}

TEST_F(HeadLoopTest, StoppingEndsRunningAnswersWithAnError) {
  node.mute = true;
  begin();
  auto answer = loop->ask(question());
  ASSERT_TRUE(answer.ok());
  while (node.generation().value == 0 && SteadyClock().now() < limit) std::this_thread::yield();
  loop->stop();
  const auto end = (*answer)->next(soon());
  ASSERT_TRUE(end && std::holds_alternative<gateway::End>(*end));
  EXPECT_EQ(std::get<gateway::End>(*end).status.code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace mesh::tracker
