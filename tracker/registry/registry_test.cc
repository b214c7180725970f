#include "tracker/registry/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mesh::tracker {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

NodeId node(std::uint8_t number) {
  NodeId id;
  id.bytes[0] = number;
  return id;
}

const ModelIdentity kModel = *ModelIdentity::parse(std::string(64, 'a'));

class RegistryTest : public testing::Test {
 protected:
  wire::Join join_message(std::uint64_t start = 1, LayerRange layers = {0, 4}) {
    wire::Join join;
    join.stamp = {start, 1};
    join.address = "10.0.0.1:8090";
    if (!layers.empty()) join.shards = {{kModel, layers, wire::ShardState::kReady, 8, 8}};
    return join;
  }
  Registry::Granted join(std::uint8_t number, std::uint64_t start = 1) {
    const auto granted = registry.join(node(number), std::string(32, 'k'), join_message(start), now);
    EXPECT_TRUE(granted.ok()) << granted.status();
    return granted.value_or(Registry::Granted{});
  }
  StatusOr<Registry::Beat> beat(std::uint8_t number, std::uint64_t lease, std::uint64_t last_reply) {
    wire::Heartbeat message;
    message.stamp = {1, ++stamp};
    message.lease = lease;
    message.last_reply = last_reply;
    message.shards = {{kModel, {0, 4}, wire::ShardState::kReady, 8, 8}};
    return registry.heartbeat(node(number), message, now);
  }

  Registry registry{Registry::Options{}};
  TimePoint now{};
  std::uint64_t stamp = 1;
};

TEST_F(RegistryTest, HeartbeatThatAcknowledgesTheLastReplyRenewsTheLease) {
  const auto granted = join(1);
  now += seconds(4);
  const auto first = beat(1, granted.lease, granted.reply);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->renewed);
  now += seconds(5);
  EXPECT_THAT(registry.expire(now), IsEmpty());
  EXPECT_EQ(registry.find(node(1))->presence, NodePresence::kAlive);
}

TEST_F(RegistryTest, NodeThatHearsNoRepliesLosesItsLeaseThoughItsHeartbeatsArrive) {
  const auto granted = join(1);
  now += seconds(1);
  ASSERT_TRUE(beat(1, granted.lease, granted.reply).ok());  // renews until second 7
  for (int i = 0; i < 3; ++i) {
    now += seconds(1);
    const auto again = beat(1, granted.lease, granted.reply);
    ASSERT_TRUE(again.ok());
    EXPECT_FALSE(again->renewed);
  }
  now += seconds(3);
  EXPECT_THAT(registry.expire(now), ElementsAre(node(1)));
}

TEST_F(RegistryTest, AcknowledgingAReplyNeverSentDoesNotRenew) {
  const auto granted = join(1);
  const auto result = beat(1, granted.lease, granted.reply + 1000);
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->renewed);
}

TEST_F(RegistryTest, HeartbeatAfterTheLeaseMustJoinAgain) {
  const auto granted = join(1);
  now += seconds(6);
  EXPECT_EQ(beat(1, granted.lease, granted.reply).status().code(), StatusCode::kNotFound);
}

TEST_F(RegistryTest, HeartbeatOfAnUnknownNodeMustJoin) {
  EXPECT_EQ(beat(9, 1, 1).status().code(), StatusCode::kNotFound);
}

TEST_F(RegistryTest, JoiningAgainIsOneRecordAndEndsTheOldLease) {
  const auto first = join(1, 1);
  const auto second = join(1, 2);
  EXPECT_EQ(registry.nodes().size(), 1u);
  EXPECT_NE(first.lease, second.lease);
  wire::Heartbeat late;
  late.stamp = {2, 2};
  late.lease = first.lease;
  EXPECT_EQ(registry.heartbeat(node(1), late, now).status().code(), StatusCode::kAborted);
}

TEST_F(RegistryTest, ReplayedJoinAndHeartbeatAreRefused) {
  const auto granted = join(1);
  EXPECT_EQ(registry.join(node(1), std::string(32, 'k'), join_message(), now).status().code(),
            StatusCode::kFailedPrecondition);
  wire::Heartbeat message;
  message.stamp = {1, 5};
  message.lease = granted.lease;
  ASSERT_TRUE(registry.heartbeat(node(1), message, now).ok());
  EXPECT_EQ(registry.heartbeat(node(1), message, now).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(RegistryTest, RestoredNodesHoldTheirLayersForOneLeaseAndServeNothing) {
  registry.restore(node(1), std::string(32, 'k'), join_message(), now);
  EXPECT_THAT(registry.coverage(kModel, 4).ready(), IsEmpty());
  EXPECT_THAT(registry.coverage(kModel, 4).held(), ElementsAre(Copy{node(1), {0, 4}}));
  now += seconds(6);
  EXPECT_THAT(registry.expire(now), IsEmpty());  // it was never alive
  EXPECT_EQ(registry.find(node(1))->presence, NodePresence::kLost);
}

TEST_F(RegistryTest, AJoinFromBeforeTheRestartIsAReplay) {
  registry.restore(node(1), std::string(32, 'k'), join_message(3), now);
  EXPECT_FALSE(registry.join(node(1), std::string(32, 'k'), join_message(3), now).ok());
  EXPECT_TRUE(registry.join(node(1), std::string(32, 'k'), join_message(4), now).ok());
}

TEST_F(RegistryTest, LostNodeIsRememberedUntilItsCopiesMayBeMadeAgain) {
  join(1);
  now += seconds(6);
  registry.expire(now);
  EXPECT_THAT(registry.coverage(kModel, 4).held(), ElementsAre(Copy{node(1), {0, 4}}));
  now += minutes(5);
  registry.expire(now);
  EXPECT_THAT(registry.nodes(), IsEmpty());
}

TEST_F(RegistryTest, LeavingNodeStopsCountingAtOnce) {
  const auto granted = join(1);
  wire::Leave leave;
  leave.stamp = {1, 2};
  leave.lease = granted.lease;
  ASSERT_TRUE(registry.leave(node(1), leave, now).ok());
  EXPECT_THAT(registry.nodes(), IsEmpty());
}

TEST_F(RegistryTest, LoadingShardsAreNotReady) {
  wire::Join message = join_message();
  message.shards[0].state = wire::ShardState::kLoading;
  ASSERT_TRUE(registry.join(node(1), std::string(32, 'k'), message, now).ok());
  EXPECT_THAT(registry.coverage(kModel, 4).ready(), IsEmpty());
  EXPECT_THAT(registry.coverage(kModel, 4).loading(), ElementsAre(Copy{node(1), {0, 4}}));
}

TEST_F(RegistryTest, ReadyLayersOfALoadingShardTakeSessionsAndTheRestIsLoading) {
  wire::Join message = join_message();
  message.shards = {{kModel, {0, 4}, wire::ShardState::kLoading, 4, 8, {0, 3}}};
  ASSERT_TRUE(registry.join(node(1), std::string(32, 'k'), message, now).ok());
  EXPECT_THAT(registry.coverage(kModel, 4).ready(), ElementsAre(Copy{node(1), {0, 3}}));
  EXPECT_THAT(registry.coverage(kModel, 4).loading(), ElementsAre(Copy{node(1), {3, 4}}));
}

TEST_F(RegistryTest, EachLayerThatGetsReadyChangesWhatRoutesSee) {
  const auto granted = join(1);
  wire::Heartbeat message;
  message.stamp = {1, 2};
  message.lease = granted.lease;
  message.shards = {{kModel, {0, 4}, wire::ShardState::kLoading, 1, 8}};
  ASSERT_TRUE(registry.heartbeat(node(1), message, now).ok());
  const std::uint64_t before = registry.version();
  message.stamp = {1, 3};
  message.shards[0].bytes_done = 2;
  ASSERT_TRUE(registry.heartbeat(node(1), message, now).ok());
  EXPECT_EQ(registry.version(), before);
  message.stamp = {1, 4};
  message.shards[0].ready = {0, 1};
  ASSERT_TRUE(registry.heartbeat(node(1), message, now).ok());
  EXPECT_GT(registry.version(), before);
}

TEST_F(RegistryTest, ReadyLayersCountOnlyWhereTheNodeHasNoOthersBesideThem) {
  const auto ready_with = [&](const LayerRange& held, const LayerRange& part) {
    Registry fresh{Registry::Options{}};
    wire::Join message = join_message();
    message.shards = {{kModel, held, wire::ShardState::kReady, 8, 8},
                      {kModel, {0, 8}, wire::ShardState::kLoading, 4, 8, part}};
    EXPECT_TRUE(fresh.join(node(1), std::string(32, 'k'), message, now).ok());
    return fresh.coverage(kModel, 8).ready();
  };
  EXPECT_THAT(ready_with({5, 8}, {0, 3}), ElementsAre(Copy{node(1), {5, 8}}));
  EXPECT_THAT(ready_with({0, 2}, {0, 3}), ElementsAre(Copy{node(1), {0, 2}}, Copy{node(1), {0, 3}}));
}

TEST_F(RegistryTest, OfTwoLoadingShardsOfAModelOneGivesACopy) {
  const auto parts = [&](const LayerRange& low, const LayerRange& high) {
    Registry fresh{Registry::Options{}};
    wire::Join message = join_message();
    message.shards = {{kModel, {0, 4}, wire::ShardState::kLoading, 4, 8, low},
                      {kModel, {2, 8}, wire::ShardState::kLoading, 4, 8, high}};
    EXPECT_TRUE(fresh.join(node(1), std::string(32, 'k'), message, now).ok());
    return fresh.coverage(kModel, 8);
  };
  EXPECT_THAT(parts({0, 2}, {2, 5}).ready(), ElementsAre(Copy{node(1), {0, 2}}));
  EXPECT_THAT(parts({0, 2}, {2, 5}).loading_counts(), ElementsAre(0, 0, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(parts({}, {2, 5}).ready(), ElementsAre(Copy{node(1), {2, 5}}));
  EXPECT_THAT(parts({}, {2, 5}).loading_counts(), ElementsAre(1, 1, 0, 0, 0, 1, 1, 1));
}

TEST_F(RegistryTest, DrainingNodesAndShardsTakeNoNewSessions) {
  const auto granted = join(1);
  wire::Heartbeat message;
  message.stamp = {1, 2};
  message.lease = granted.lease;
  message.shards = {{kModel, {0, 4}, wire::ShardState::kDraining, 8, 8}};
  ASSERT_TRUE(registry.heartbeat(node(1), message, now).ok());
  EXPECT_THAT(registry.coverage(kModel, 4).ready(), IsEmpty());
  message.stamp = {1, 3};
  message.shards[0].state = wire::ShardState::kReady;
  message.draining = true;
  ASSERT_TRUE(registry.heartbeat(node(1), message, now).ok());
  EXPECT_THAT(registry.coverage(kModel, 4).ready(), IsEmpty());
}

TEST_F(RegistryTest, HighestEpochOfAnyNodeIsKept) {
  wire::Join message = join_message();
  message.highest_epoch = {41};
  ASSERT_TRUE(registry.join(node(1), std::string(32, 'k'), message, now).ok());
  EXPECT_EQ(registry.highest_epoch(), Epoch{41});
}

TEST_F(RegistryTest, AnEpochThatNobodyGaveOutIsRefusedAndChangesNothing) {
  const Registry::Granted granted = join(1);
  for (const std::uint64_t named : {~std::uint64_t{0}, ~std::uint64_t{0} - 1, std::uint64_t{1} << 33}) {
    wire::Join message = join_message();
    message.highest_epoch = {named};
    EXPECT_EQ(registry.join(node(2), std::string(32, 'k'), message, now).status().code(),
              StatusCode::kInvalidArgument);
    wire::Heartbeat message_beat;
    message_beat.stamp = {1, 1000};
    message_beat.lease = granted.lease;
    message_beat.highest_epoch = {named};
    EXPECT_EQ(registry.heartbeat(node(1), message_beat, now).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(registry.find(node(2)), nullptr);
  EXPECT_EQ(registry.highest_epoch(), Epoch{0});
  registry.given_out({std::uint64_t{1} << 33});
  wire::Join message = join_message();
  message.highest_epoch = {std::uint64_t{1} << 33};
  EXPECT_TRUE(registry.join(node(2), std::string(32, 'k'), message, now).ok());
}

TEST_F(RegistryTest, ManyNodesSilentAtOnceMakeTheTrackerSuspectItselfUntilHalfAreBack) {
  std::vector<Registry::Granted> granted;
  for (std::uint8_t i = 0; i < 9; ++i) granted.push_back(join(i));
  now += seconds(3);
  for (std::uint8_t i = 0; i < 5; ++i) ASSERT_TRUE(beat(i, granted[i].lease, granted[i].reply).ok());
  now += seconds(3);
  EXPECT_EQ(registry.expire(now).size(), 4u);  // 4 of 9 > a third
  EXPECT_TRUE(registry.suspects_itself());
  join(5, 2);
  EXPECT_TRUE(registry.suspects_itself());
  join(6, 2);
  EXPECT_FALSE(registry.suspects_itself());
}

TEST_F(RegistryTest, AThirdOrLessSilentIsOrdinaryLoss) {
  std::vector<Registry::Granted> granted;
  for (std::uint8_t i = 0; i < 9; ++i) granted.push_back(join(i));
  now += seconds(3);
  for (std::uint8_t i = 0; i < 6; ++i) ASSERT_TRUE(beat(i, granted[i].lease, granted[i].reply).ok());
  now += seconds(3);
  EXPECT_EQ(registry.expire(now).size(), 3u);
  EXPECT_FALSE(registry.suspects_itself());
}

TEST_F(RegistryTest, NextExpiryIsTheEarliestLease) {
  join(1);
  now += milliseconds(500);
  join(2);
  EXPECT_EQ(*registry.next_expiry(), TimePoint{} + seconds(6));
}

}  // namespace
}  // namespace mesh::tracker
