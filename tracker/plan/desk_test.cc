#include "tracker/plan/desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mesh::tracker {
namespace {

using std::chrono::seconds;
using testing::IsEmpty;
using testing::SizeIs;

NodeId node_id(std::uint8_t number) {
  NodeId id;
  id.bytes[0] = number;
  return id;
}
const ModelIdentity kModel = *ModelIdentity::parse(std::string(64, '7'));

ModelProfile model(std::uint32_t layers) {
  ModelProfile profile;
  profile.identity = kModel;
  profile.name = "m";
  profile.model_type = "llama";
  profile.quantization = profile.compute_type = "bfloat16";
  profile.layer_bytes.assign(layers, 100);
  profile.layer_bytes_per_token.assign(layers, 0);
  return profile;
}

class DeskTest : public testing::Test {
 protected:
  DeskTest() : desk({model(6)}, {}, options(), 1) {}

  static DirectiveDesk::Options options() {
    DirectiveDesk::Options options;
    options.plan.budget = {.session_tokens = 0, .reserve_bytes = 0};
    return options;
  }

  void join(std::uint8_t number, std::uint32_t capacity, std::vector<wire::ShardStatus> shards = {},
            std::uint64_t start = 1, double read_rate = 0) {
    wire::Join message;
    message.read_bytes_per_second = read_rate;
    message.stamp = {start, 1};
    message.memory_bytes = 100ull * capacity + 100;
    message.model_types = {"llama"};
    message.quantizations = message.compute_types = {"bfloat16"};
    message.shards = std::move(shards);
    const auto granted = registry.join(node_id(number), std::string(32, 'k'), message, now);
    ASSERT_TRUE(granted.ok());
    leases[number] = granted->lease;
    starts[number] = start;
    replies[number] = granted->reply;
    desk.joined(node_id(number), start);
    plan();
  }

  std::vector<wire::Directive> beat(std::uint8_t number, std::vector<wire::ShardStatus> shards,
                                    std::vector<wire::DirectiveStatus> statuses = {}) {
    wire::Heartbeat message;
    message.stamp = {starts[number], ++stamp};
    message.lease = leases[number];
    message.last_reply = replies[number];
    message.shards = std::move(shards);
    const auto beat = registry.heartbeat(node_id(number), message, now);
    EXPECT_TRUE(beat.ok()) << beat.status();
    if (beat.ok()) replies[number] = beat->reply;
    desk.acknowledged(node_id(number), statuses, now);
    plan();
    return desk.due(registry, node_id(number), now);
  }

  void plan() {
    if (desk.consider(registry, now)) desk.adopt(epoch = epoch.next());
  }

  static wire::ShardStatus shard(LayerRange layers, wire::ShardState state = wire::ShardState::kReady) {
    return {kModel, layers, state, 0, 0};
  }

  Registry registry{Registry::Options{}};
  DirectiveDesk desk;
  TimePoint now{};
  Epoch epoch;
  std::uint64_t stamp = 1;
  std::map<std::uint8_t, std::uint64_t> leases, starts, replies;
};

TEST_F(DeskTest, ADirectiveIsRepeatedUntilItIsAcknowledgedAndThenNoMore) {
  join(1, 6);
  const auto first = beat(1, {});
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_EQ(first[0].kind, wire::DirectiveKind::kLoadShard);
  EXPECT_EQ(first[0].layers, (LayerRange{0, 6}));
  EXPECT_EQ(first[0].epoch, epoch);
  EXPECT_THAT(beat(1, {}), testing::ElementsAre(first[0]));
  const wire::DirectiveStatus accepted{first[0].id, wire::DirectiveState::kAccepted, ""};
  EXPECT_THAT(beat(1, {}, {accepted}), IsEmpty());
  EXPECT_THAT(beat(1, {shard({0, 6}, wire::ShardState::kLoading)}, {accepted}), IsEmpty());
}

TEST_F(DeskTest, WhatWasOrderedIsNotGivenToANodeThatJoinsBeforeItIsAcknowledged) {
  join(2, 4);
  const auto first = beat(2, {});
  ASSERT_THAT(first, SizeIs(1));
  join(1, 4);  // comes first in the planner's order
  const auto other = beat(1, {});
  ASSERT_THAT(other, SizeIs(1));
  EXPECT_NE(other[0].layers, first[0].layers);
  const auto again = beat(2, {});
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].layers, first[0].layers);
}

TEST_F(DeskTest, WhatIsReachedIsLeftAlone) {
  join(1, 6);
  const auto first = beat(1, {});
  const wire::DirectiveStatus done{first.at(0).id, wire::DirectiveState::kDone, ""};
  EXPECT_THAT(beat(1, {shard({0, 6})}, {done}), IsEmpty());
  const Epoch before = epoch;
  EXPECT_THAT(beat(1, {shard({0, 6})}), IsEmpty());
  EXPECT_EQ(epoch, before);
}

TEST_F(DeskTest, AFailedLoadGoesToAnotherNodeAndIsTriedAgainLater) {
  join(1, 6);
  const auto first = beat(1, {});
  const wire::DirectiveStatus failed{first.at(0).id, wire::DirectiveState::kFailed, "disk full"};
  EXPECT_THAT(beat(1, {}, {failed}), IsEmpty());
  EXPECT_EQ(desk.failures(node_id(1)).at(kModel), "disk full");
  join(2, 6);
  EXPECT_THAT(beat(2, {}), SizeIs(1));
  now += seconds(5);
  beat(1, {});
  now += seconds(5);
  beat(1, {});
  for (int i = 0; i < 6; ++i) {
    now += seconds(5);
    beat(1, {});
  }
  EXPECT_THAT(beat(1, {}), SizeIs(1));
}

TEST_F(DeskTest, ARestartedNodeIsOrderedAgainWhatItLost) {
  join(1, 6);
  const auto first = beat(1, {});
  const wire::DirectiveStatus accepted{first.at(0).id, wire::DirectiveState::kAccepted, ""};
  beat(1, {shard({0, 6}, wire::ShardState::kLoading)}, {accepted});
  join(1, 6, {}, 2);
  const auto again = beat(1, {});
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_NE(again[0].id, first[0].id);
}

TEST_F(DeskTest, ANodeThatComesBackWithItsLayersIsOrderedNothing) {
  registry.restore(
      node_id(1), std::string(32, 'k'),
      [] {
        wire::Join facts;
        facts.stamp = {1, 9};
        facts.memory_bytes = 700;
        facts.model_types = {"llama"};
        facts.quantizations = facts.compute_types = {"bfloat16"};
        facts.shards = {shard({0, 6})};
        return facts;
      }(),
      now);
  plan();
  join(2, 6);  // nothing is missing as long as node 1 is remembered: node 2 becomes a copy at most
  EXPECT_THAT(desk.plan().gaps, IsEmpty());
  join(1, 6, {shard({0, 6})}, 2);
  EXPECT_THAT(beat(1, {shard({0, 6})}), IsEmpty());
}

/// Where node 3, which has room for three layers, is sent when nodes 1 and 2 hold three each.
class DeskSpeeds : public DeskTest {
 protected:
  LayerRange third_range(double first, double second) {
    join(1, 3, {shard({0, 3})}, 1, first);
    join(2, 3, {shard({3, 6})}, 1, second);
    join(3, 3);
    for (const Assignment& item : desk.plan().target) {
      if (item.node == node_id(3)) return item.layers;
    }
    return {};
  }
};

TEST_F(DeskSpeeds, FurtherCopiesGoWhereTheMeasuredNodesAreSlow) {
  EXPECT_EQ(third_range(40e9, 10e9), (LayerRange{3, 6}));
}

TEST_F(DeskSpeeds, FurtherCopiesGoToTheFirstLayersWhereThoseAreSlow) {
  EXPECT_EQ(third_range(10e9, 40e9), (LayerRange{0, 3}));
}

TEST_F(DeskSpeeds, ANodeThatDidNotMeasureCountsAsAnAverageOne) {
  EXPECT_EQ(third_range(40e9, 0), (LayerRange{0, 3}));  // both weigh 1
}

TEST_F(DeskTest, NothingIsOrderedWhileTheTrackerSuspectsItself) {
  for (std::uint8_t i = 1; i <= 6; ++i) join(i, 1, {shard({static_cast<std::uint32_t>(i - 1), i})});
  join(7, 6);
  now += seconds(5);
  for (std::uint8_t i = 1; i <= 3; ++i) {
    beat(i, {shard({static_cast<std::uint32_t>(i - 1), i})});
  }
  now += seconds(2);
  registry.expire(now);  // 4 of 7
  ASSERT_TRUE(registry.suspects_itself());
  const Epoch before = epoch;
  EXPECT_THAT(beat(1, {shard({0, 1})}), IsEmpty());
  EXPECT_EQ(epoch, before);
}

TEST_F(DeskTest, EventsTellTheWholeStoryOfADirective) {
  join(1, 6);
  const auto first = beat(1, {});
  const wire::DirectiveStatus done{first.at(0).id, wire::DirectiveState::kDone, ""};
  beat(1, {shard({0, 6})}, {done});
  const auto events = desk.take_events();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].outcome, "issued");
  EXPECT_EQ(events[1].outcome, "done");
}

}  // namespace
}  // namespace mesh::tracker
