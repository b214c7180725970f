#include "node/agent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mesh {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

template <class Id>
Id id_of(std::uint8_t fill) {
  Id id;
  id.bytes.fill(fill);
  return id;
}

const NodeId kNode = id_of<NodeId>(1);
const ModelIdentity kModel = id_of<ModelIdentity>(2);

wire::CatalogueEntry entry() {
  return {kModel, "tiny", "llama", "bfloat16", "float32", 10, 64};
}

/// A core, its clock, and the tracker's side of the messages.
class AgentTest : public testing::Test {
 protected:
  static AgentOptions options() {
    AgentOptions options;
    options.self.stamp.start = 7;
    options.self.quantizations = {"bfloat16"};
    options.self.compute_types = {"float32"};
    options.node = kNode;
    options.highest_epoch = Epoch{3};
    options.jitter_seed = 1;
    return options;
  }

  TimePoint now() const { return clock_.now(); }
  void advance(Duration by) {
    clock_.advance(by);
    core_.on_time(now());
  }

  /// The only effect of that kind since the last call, or nothing.
  template <class T>
  std::optional<T> take() {
    for (auto& effect : core_.take_effects()) seen_.push_back(std::move(effect));
    for (auto it = seen_.begin(); it != seen_.end(); ++it) {
      if (std::holds_alternative<T>(*it)) {
        T found = std::get<T>(*it);
        seen_.erase(it);
        return found;
      }
    }
    return std::nullopt;
  }

  wire::Join join_at_once() {
    core_.on_time(now());
    auto sent = take<SendJoin>();
    EXPECT_TRUE(sent.has_value());
    wire::JoinReply reply;
    reply.answers = sent->join.stamp;
    reply.node = kNode;
    reply.lease = ++lease_;
    reply.reply = ++reply_;
    reply.heartbeat_ms = 2000;
    reply.lease_ms = 6000;
    reply.epoch = Epoch{5};
    reply.catalogue = {entry()};
    core_.on_join_reply(now(), reply);
    return sent->join;
  }

  wire::Heartbeat beat() {
    advance(seconds(2));
    auto sent = take<SendHeartbeat>();
    EXPECT_TRUE(sent.has_value());
    return sent ? sent->heartbeat : wire::Heartbeat{};
  }
  void answer(const wire::Heartbeat& beat, std::vector<CheckedDirective> directives = {}) {
    wire::HeartbeatReply reply;
    reply.answers = beat.stamp;
    reply.lease = lease_;
    reply.reply = ++reply_;
    reply.epoch = Epoch{5};
    core_.on_heartbeat_reply(now(), reply, directives);
  }
  CheckedDirective load(std::uint8_t id, LayerRange layers = {0, 4}) {
    wire::Directive directive;
    directive.id = id_of<wire::DirectiveId>(id);
    directive.node = kNode;
    directive.epoch = Epoch{5};
    directive.kind = wire::DirectiveKind::kLoadShard;
    directive.model = kModel;
    directive.layers = layers;
    directive.quantization = "bfloat16";
    directive.expires_in_ms = 30'000;
    return {directive, absl::OkStatus()};
  }
  /// The status that the next heartbeat reports for the directive.
  std::optional<wire::DirectiveStatus> reported(std::uint8_t id) {
    const wire::Heartbeat next = beat();
    answer(next);
    for (const auto& status : next.directives) {
      if (status.id == id_of<wire::DirectiveId>(id)) return status;
    }
    return std::nullopt;
  }
  void fail_call(const std::string& code = "", const std::string& install = "") {
    core_.on_call_failed(now(),
                         {error(StatusCode::kUnavailable, "connection refused"), {code, "why", install}});
  }

  ManualClock clock_;
  AgentCore core_{options(), clock_.now()};
  std::uint64_t lease_ = 40;
  std::uint64_t reply_ = 100;
  std::vector<AgentEffect> seen_;
};

TEST_F(AgentTest, JoinsAtOnceAndStoresTheEpochOfTheReply) {
  core_.set_shards({{kModel, {0, 2}, wire::ShardState::kReady, 8, 8}});
  const wire::Join join = join_at_once();
  EXPECT_EQ(join.stamp, (wire::Stamp{7, 1}));
  EXPECT_EQ(join.highest_epoch, Epoch{3});
  ASSERT_EQ(join.shards.size(), 1u);
  EXPECT_EQ(core_.state(), AgentState::kMember);
  EXPECT_EQ(take<StoreEpoch>()->epoch, Epoch{5});
}

TEST_F(AgentTest, TheFirstHeartbeatFollowsTheJoinAtOnceSoThatLoadingBegins) {
  join_at_once();
  EXPECT_EQ(core_.next_wakeup(), now());
  core_.on_time(now());
  const auto first = take<SendHeartbeat>();
  ASSERT_TRUE(first.has_value());
  answer(first->heartbeat, {load(1)});
  EXPECT_TRUE(take<BeginLoad>().has_value());
  EXPECT_EQ(core_.next_wakeup(), now() + seconds(2));
}

TEST_F(AgentTest, HeartbeatsEveryTwoSecondsNameTheLastReply) {
  join_at_once();
  const wire::Heartbeat first = beat();
  EXPECT_EQ(first.last_reply, 101u);
  EXPECT_EQ(first.stamp, (wire::Stamp{7, 2}));
  answer(first);
  advance(milliseconds(1999));
  EXPECT_EQ(take<SendHeartbeat>(), std::nullopt);
  advance(milliseconds(1));
  EXPECT_EQ(take<SendHeartbeat>()->heartbeat.last_reply, 102u);
}

TEST_F(AgentTest, LeaseCountsFromTheSendingOfTheHeartbeat) {
  join_at_once();                       // sent at 0: lease until 6 s
  const wire::Heartbeat sent = beat();  // sent at 2 s
  clock_.advance(milliseconds(3900));
  answer(sent);  // lease until 8 s, though the reply came at 5.9 s
  EXPECT_TRUE(core_.accepts_new_work(TimePoint{} + milliseconds(7999)));
  EXPECT_FALSE(core_.accepts_new_work(TimePoint{} + milliseconds(8000)));
}

TEST_F(AgentTest, SilenceEndsTheLeaseAndTheNextAnswerRestoresIt) {
  join_at_once();
  beat();
  fail_call();
  while (now() < TimePoint{} + seconds(7)) {
    advance(milliseconds(100));
    if (take<SendHeartbeat>()) fail_call();
  }
  EXPECT_EQ(core_.state(), AgentState::kLapsed);
  EXPECT_FALSE(core_.accepts_new_work(now()));
  const wire::Heartbeat late = beat();
  answer(late);
  EXPECT_EQ(core_.state(), AgentState::kMember);
  EXPECT_TRUE(core_.accepts_new_work(now()));
}

TEST_F(AgentTest, ATrackerThatForgotTheNodeIsJoinedAgainWithTheHeldShards) {
  join_at_once();
  core_.set_shards({{kModel, {0, 4}, wire::ShardState::kReady, 8, 8}});
  beat();
  fail_call("unknown_node");
  EXPECT_EQ(core_.state(), AgentState::kApart);
  advance(seconds(1));
  const auto again = take<SendJoin>();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->join.stamp, (wire::Stamp{7, 3}));
  ASSERT_EQ(again->join.shards.size(), 1u);
  EXPECT_EQ(again->join.shards[0].layers, (LayerRange{0, 4}));
  EXPECT_EQ(again->join.highest_epoch, Epoch{5});
}

TEST_F(AgentTest, BackOffGrowsWithJitterAndIsSaidOnce) {
  core_.on_time(now());
  int said = 0;
  Duration longest{}, first_three{};
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(take<SendJoin>().has_value());
    fail_call();
    while (const auto say = take<Say>()) said += say->level == Say::Level::kWarning;
    const Duration wait = core_.next_wakeup() - now();
    EXPECT_GE(wait, milliseconds(125));
    EXPECT_LE(wait, seconds(15));
    longest = std::max(longest, wait);
    if (i < 3) first_three += wait;
    advance(wait);
  }
  EXPECT_GE(longest, milliseconds(7500));
  EXPECT_LE(first_three,
            milliseconds(250 + 500 + 1000));  // a tracker started just after its node is found soon
  EXPECT_EQ(said, 1);
}

TEST_F(AgentTest, AnotherTroubleIsSaidThoughTheFirstLasts) {
  core_.on_time(now());
  fail_call();
  EXPECT_TRUE(take<Say>().has_value());
  advance(core_.next_wakeup() - now());
  core_.on_call_failed(now(), {error(StatusCode::kPermissionDenied, "another key"), {}});
  EXPECT_THAT(take<Say>()->text, HasSubstr("another key"));
}

TEST_F(AgentTest, AnUpgradeOrAWrongJoinKeyEndsTheProgramWithTheFix) {
  core_.on_time(now());
  fail_call("upgrade", "0.9.0");
  EXPECT_THAT(take<GiveUp>()->why.ToString(), HasSubstr("0.9.0"));
  EXPECT_EQ(core_.state(), AgentState::kLeft);
  EXPECT_EQ(core_.next_wakeup(), TimePoint::max());
}

TEST_F(AgentTest, AReplyToAnotherHeartbeatIsIgnored) {
  join_at_once();
  wire::Heartbeat old = beat();
  answer(old);
  beat();
  answer(old, {load(1)});  // a replay of an old reply's stamp
  EXPECT_EQ(take<BeginLoad>(), std::nullopt);
}

TEST_F(AgentTest, ALoadIsCarriedOutOnceAndReportedUntilAReplyCoversIt) {
  join_at_once();
  answer(beat(), {load(1)});
  const auto begun = take<BeginLoad>();
  ASSERT_TRUE(begun.has_value());
  EXPECT_EQ(begun->layers, (LayerRange{0, 4}));
  EXPECT_EQ(begun->model, entry());
  const wire::Heartbeat working = beat();
  EXPECT_EQ(working.directives.at(0).state, wire::DirectiveState::kWorking);
  answer(working, {load(1)});
  EXPECT_EQ(take<BeginLoad>(), std::nullopt);

  core_.set_shards({{kModel, {0, 4}, wire::ShardState::kReady, 8, 8}});
  core_.on_directive_ended(now(), begun->id, absl::OkStatus());
  core_.on_time(now());
  const auto done = take<SendHeartbeat>();  // at once, not at the next beat
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->heartbeat.directives.at(0).state, wire::DirectiveState::kDone);
  fail_call();
  const auto repeated = reported(1);
  ASSERT_TRUE(repeated.has_value());
  EXPECT_EQ(repeated->state, wire::DirectiveState::kDone);
  EXPECT_EQ(reported(1), std::nullopt);
}

TEST_F(AgentTest, ARepeatedDirectiveIsAnsweredFromMemory) {
  join_at_once();
  answer(beat(), {load(1)});
  core_.on_directive_ended(now(), take<BeginLoad>()->id,
                           error(StatusCode::kResourceExhausted, "needs 5, has 4"));
  EXPECT_EQ(reported(1)->state, wire::DirectiveState::kFailed);
  answer(beat(), {load(1)});
  EXPECT_EQ(take<BeginLoad>(), std::nullopt);
  EXPECT_EQ(reported(1)->message, "needs 5, has 4");
}

TEST_F(AgentTest, DirectivesRunOneAfterAnother) {
  join_at_once();
  answer(beat(), {load(1, {0, 2}), load(2, {2, 4})});
  EXPECT_EQ(take<BeginLoad>()->layers, (LayerRange{0, 2}));
  EXPECT_EQ(take<BeginLoad>(), std::nullopt);
  core_.on_directive_ended(now(), id_of<wire::DirectiveId>(1), absl::OkStatus());
  EXPECT_EQ(take<BeginLoad>()->layers, (LayerRange{2, 4}));
}

TEST_F(AgentTest, RefusesWhatItMayNotDo) {
  struct Case {
    std::string expected;
    std::function<void(CheckedDirective&)> spoil;
  };
  const std::vector<Case> cases{
      {"is for node", [](auto& c) { c.directive.node = id_of<NodeId>(9); }},
      {"older than 5", [](auto& c) { c.directive.epoch = Epoch{4}; }},
      {"expired", [](auto& c) { c.directive.expires_in_ms = 0; }},
      {"not in the catalogue", [](auto& c) { c.directive.model = id_of<ModelIdentity>(9); }},
      {"outside tiny", [](auto& c) { c.directive.layers = {8, 11}; }},
      {"empty or outside", [](auto& c) { c.directive.layers = {4, 4}; }},
      {"quantization int8", [](auto& c) { c.directive.quantization = "int8"; }},
      {"wrong signature",
       [](auto& c) { c.signature = error(StatusCode::kUnauthenticated, "wrong signature"); }},
  };
  join_at_once();
  std::uint8_t id = 10;
  for (const Case& one : cases) {
    CheckedDirective checked = load(++id);
    one.spoil(checked);
    answer(beat(), {checked});
    EXPECT_EQ(take<BeginLoad>(), std::nullopt) << one.expected;
    const auto status = reported(id);
    ASSERT_TRUE(status.has_value()) << one.expected;
    EXPECT_EQ(status->state, wire::DirectiveState::kRefused);
    EXPECT_THAT(status->message, HasSubstr(one.expected));
  }
}

TEST_F(AgentTest, AnExpiredDirectiveIsNotBegun) {
  join_at_once();
  CheckedDirective second = load(2, {4, 6});
  second.directive.expires_in_ms = 3000;
  answer(beat(), {load(1), second});
  answer(beat());
  answer(beat());
  core_.on_directive_ended(now(), id_of<wire::DirectiveId>(1), absl::OkStatus());
  EXPECT_EQ(take<BeginLoad>()->id, id_of<wire::DirectiveId>(1));
  EXPECT_EQ(take<BeginLoad>(), std::nullopt);
  EXPECT_THAT(reported(2)->message, HasSubstr("expired"));
}

TEST_F(AgentTest, WhatIsHeldIsNotLoadedAndWhatIsGoneIsNotDropped) {
  join_at_once();
  core_.set_shards({{kModel, {0, 6}, wire::ShardState::kReady, 8, 8}});
  CheckedDirective drop = load(2, {6, 8});
  drop.directive.kind = wire::DirectiveKind::kDropShard;
  answer(beat(), {load(1), drop});
  EXPECT_EQ(take<BeginLoad>(), std::nullopt);
  EXPECT_EQ(take<BeginDrop>(), std::nullopt);
  EXPECT_EQ(reported(1)->state, wire::DirectiveState::kDone);
}

TEST_F(AgentTest, AShardIsNeverCutShorter) {
  join_at_once();
  core_.set_shards({{kModel, {0, 6}, wire::ShardState::kReady, 8, 8}});
  CheckedDirective drop = load(2, {3, 6});
  drop.directive.kind = wire::DirectiveKind::kDropShard;
  answer(beat(), {drop});
  const auto status = reported(2);
  EXPECT_EQ(status->state, wire::DirectiveState::kFailed);
  EXPECT_THAT(status->message, HasSubstr("[0, 6)"));
}

TEST_F(AgentTest, DrainingRefusesLoadsAndLeavesWithAGoodbye) {
  join_at_once();
  core_.begin_drain(now());
  core_.on_time(now());
  const auto said = take<SendHeartbeat>();
  ASSERT_TRUE(said.has_value());
  EXPECT_TRUE(said->heartbeat.draining);
  EXPECT_FALSE(core_.accepts_new_work(now()));
  answer(said->heartbeat, {load(1)});
  EXPECT_EQ(reported(1)->state, wire::DirectiveState::kRefused);
  core_.leave(now());
  const auto goodbye = take<SendLeave>();
  ASSERT_TRUE(goodbye.has_value());
  EXPECT_EQ(goodbye->leave.lease, lease_);
  EXPECT_EQ(core_.state(), AgentState::kLeft);
}

TEST_F(AgentTest, TheSameSeedGivesTheSameTimes) {
  AgentCore other(options(), TimePoint{});
  const auto run = [](AgentCore& core) {
    std::vector<TimePoint> times;
    TimePoint now{};
    for (int i = 0; i < 5; ++i) {
      core.on_time(now);
      core.on_call_failed(now, {error(StatusCode::kUnavailable, "down"), {}});
      times.push_back(now = core.next_wakeup());
    }
    return times;
  };
  EXPECT_EQ(run(core_), run(other));
}

}  // namespace
}  // namespace mesh
