#include "tracker/runtime/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <thread>

#include "common/identity/signed_message.h"
#include "tracker/store/store.h"

namespace mesh::tracker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const ModelIdentity kModel = *ModelIdentity::parse(std::string(64, '7'));

/// A store whose writes wait while `hold` is set.
class SlowStore final : public MembershipStore {
 public:
  explicit SlowStore(Store store) : store_(std::move(store)) {}

  StatusOr<Epoch> next_epoch(Epoch at_least) override {
    wait();
    return store_.next_epoch(at_least);
  }
  Status put_node(const StoredNode& node) override {
    wait();
    return store_.put_node(node);
  }
  Status erase_node(const NodeId& id) override {
    wait();
    return store_.erase_node(id);
  }
  StatusOr<std::vector<StoredNode>> nodes() override { return store_.nodes(); }
  Status log_directive(const StoredDirective& directive) override {
    wait();
    return store_.log_directive(directive);
  }

  std::atomic<bool> hold = false;
  std::atomic<bool> waits = false;

 private:
  void wait() {
    while (hold) {
      waits = true;
      std::this_thread::yield();
    }
  }
  Store store_;
};

class MembershipTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "meshnet-members-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
    begin();
  }
  void TearDown() override {
    members.reset();
    std::filesystem::remove_all(folder);
  }

  /// A fresh run of the tracker on the same folder.
  void begin(std::optional<JoinKey> join_key = std::nullopt) {
    members.reset();
    Membership::Options options;
    options.catalogue = {{kModel, "m", "llama", "bfloat16", "bfloat16", 6, 8}};
    ModelProfile profile;
    profile.identity = kModel;
    profile.name = "m";
    profile.model_type = "llama";
    profile.quantization = profile.compute_type = "bfloat16";
    profile.layer_bytes.assign(6, 100);
    profile.layer_bytes_per_token.assign(6, 10);
    options.profiles = {profile};
    options.head_layers = {{kModel, 2}};
    options.self = tracker->id();
    options.head_url = "http://127.0.0.1:1";
    options.desk.plan.budget = {.session_tokens = 0, .reserve_bytes = 0};
    options.needs_proof = [needed = join_key.has_value()](std::string_view) { return needed; };
    options.join_key = join_key;
    options.on_lost = [this](const NodeId& who) { lost.push_back(who); };
    auto store = Store::open((folder / "tracker.db").string());
    ASSERT_TRUE(store.ok()) << store.status();
    auto slow = std::make_unique<SlowStore>(*std::move(store));
    disk = slow.get();
    members =
        std::make_unique<Membership>(std::move(options), std::move(slow), tracker, log::Logger::silent());
    ASSERT_TRUE(members->start().ok());
  }

  net::Response call(std::string_view route, std::string body, const net::Headers& more = {}) {
    net::Request request;
    request.method = "POST";
    request.path = std::string(route);
    request.body = std::move(body);
    request.remote_ip = remote_ip;
    request.principal = node.id().hex();
    request.headers = more;
    request.headers.add(kKeyHeader, node.public_key().hex());
    for (const net::Route& each : members->routes()) {
      if (each.pattern == route) return each.handler(request);
    }
    ADD_FAILURE() << route;
    return {};
  }

  wire::Join join_message(std::vector<wire::ShardStatus> shards = {}) {
    wire::Join join;
    join.stamp = {start, ++number};
    join.program_version = "0.1.0";
    join.wire_versions = {1};
    join.address = "127.0.0.1:9";
    join.memory_bytes = 100'000;
    join.device = "cpu";
    join.model_types = {"llama"};
    join.quantizations = join.compute_types = {"bfloat16"};
    join.shards = std::move(shards);
    return join;
  }
  wire::JoinReply join(std::vector<wire::ShardStatus> shards = {}) {
    const auto response = call(wire::kJoinRoute, wire::to_json(join_message(std::move(shards))));
    const auto reply = wire::parse_join_reply(response.body);
    EXPECT_TRUE(reply.ok()) << response.body;
    if (reply.ok()) last = *reply;
    return last;
  }
  wire::HeartbeatReply beat(std::vector<wire::ShardStatus> shards,
                            std::vector<wire::DirectiveStatus> statuses = {}, wire::NodeLoad load = {}) {
    wire::Heartbeat message;
    message.load = load;
    message.stamp = {start, ++number};
    message.lease = last.lease;
    message.last_reply = last.reply;
    message.shards = std::move(shards);
    message.directives = std::move(statuses);
    const auto response = call(wire::kHeartbeatRoute, wire::to_json(message));
    const auto reply = wire::parse_heartbeat_reply(response.body);
    EXPECT_TRUE(reply.ok()) << response.body;
    if (!reply.ok()) return {};
    last.reply = reply->reply;
    return *reply;
  }
  static wire::ShardStatus shard(LayerRange layers) {
    return {kModel, layers, wire::ShardState::kReady, 1, 1};
  }
  static std::string code(const net::Response& response) {
    const auto refusal = wire::parse_control_error(response.body);
    return refusal.ok() ? refusal->code : "(" + response.body + ")";
  }

  std::filesystem::path folder;
  std::shared_ptr<const KeyPair> tracker = std::make_shared<const KeyPair>(KeyPair::generate());
  KeyPair node = KeyPair::generate();
  SlowStore* disk = nullptr;  ///< of `members`
  std::unique_ptr<Membership> members;
  std::vector<NodeId> lost;
  wire::JoinReply last;
  std::uint64_t start = 1;
  std::uint64_t number = 0;
  std::string remote_ip = "127.0.0.1";
};

TEST_F(MembershipTest, OpeningsNameTheStampThatTheNodeSentLast) {
  EXPECT_EQ(members->freshness_of(node.id()), (wire::Freshness{node.id(), {}})) << "not known yet";
  join();
  EXPECT_EQ(members->freshness_of(node.id()), (wire::Freshness{node.id(), {start, number}}));
  beat({});
  EXPECT_EQ(members->freshness_of(node.id()), (wire::Freshness{node.id(), {start, number}}));
}

TEST_F(MembershipTest, WhatCanNeverFitFollowsFromHeartbeatsAndTheHeadsOwnMemory) {
  constexpr std::uint64_t kBlock = 128 * 10;  // bytes of one layer
  join({shard({0, 6})});
  beat({shard({0, 6})});
  EXPECT_FALSE(members->find_room(kModel, 1 << 20, 1 << 30)) << "the node has not said what it has";
  wire::NodeLoad load;
  load.kv_blocks_used = 7;
  load.kv_blocks_total = 9;
  load.memory_free_bytes = 2 * kBlock + 5;
  beat({shard({0, 6})}, {}, load);
  EXPECT_FALSE(members->find_room(kModel, 2 * 128, 1 << 30)) << "8 of 9 blocks behind the head's layers";
  const auto no = members->find_room(kModel, 2 * 128 + 1, 1 << 30);
  ASSERT_TRUE(no);
  EXPECT_EQ(no->node, node.id());
  EXPECT_EQ(no->layers, (LayerRange{2, 6}));
  EXPECT_EQ(no->needed_bytes, 12 * kBlock);
  EXPECT_EQ(no->free_bytes, 9 * kBlock + 5);
  EXPECT_EQ(no->most_tokens, 256u);
  const auto own = members->find_room(kModel, 129, 2 * kBlock);
  ASSERT_TRUE(own);
  EXPECT_EQ(own->node, tracker->id());
}

TEST_F(MembershipTest, AJoinedNodeIsOrderedTheLayersBehindTheHeadBySignedDirective) {
  const auto reply = join();
  EXPECT_EQ(reply.node, node.id());
  ASSERT_THAT(reply.catalogue, SizeIs(1));
  const auto heartbeat = beat({});
  ASSERT_THAT(heartbeat.directives, SizeIs(1));
  const wire::SignedDirective& signed_one = heartbeat.directives[0];
  const auto directive = wire::parse_directive(signed_one.body);
  ASSERT_TRUE(directive.ok());
  EXPECT_EQ(directive->layers, (LayerRange{2, 6}));
  EXPECT_EQ(directive->epoch, heartbeat.epoch);
  EXPECT_TRUE(verify(tracker->public_key(), std::string(wire::kDirectiveSignaturePrefix) + signed_one.body,
                     *Signature::from_bytes(signed_one.signature)));
}

TEST_F(MembershipTest, RepliesAreSignedByTheTracker) {
  const auto response = call(wire::kJoinRoute, wire::to_json(join_message()));
  const auto key = verify_message(wire::kJoinRoute, response.body, response.headers.get(kKeyHeader),
                                  response.headers.get(kSignatureHeader));
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_EQ(*key, tracker->public_key());
}

TEST_F(MembershipTest, CoverageIsCompleteWhenTheNodeIsReadyAndRoutesBeginAtTheHead) {
  join();
  EXPECT_EQ(members->ready().code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(message_of(members->available(kModel))), HasSubstr("[2, 6)"));
  beat({shard({2, 6})});
  EXPECT_TRUE(members->ready().ok());
  head::RouteWanted wanted;
  wanted.identity = kModel;
  wanted.range = {0, 6};
  wanted.first = true;
  const auto hops = members->find(wanted);
  ASSERT_TRUE(hops.ok()) << hops.status();
  EXPECT_THAT(*hops, ElementsAre(wire::HopAddress{tracker->id(), "http://127.0.0.1:1", {0, 2}},
                                 wire::HopAddress{node.id(), "http://127.0.0.1:9", {2, 6}}));
  EXPECT_EQ(members->key_of(node.id()), node.public_key());
}

TEST_F(MembershipTest, AReplacementCoversTheLostRangeAloneAndNotByAnExcludedNode) {
  join();
  beat({shard({2, 6})});
  head::RouteWanted wanted;
  wanted.identity = kModel;
  wanted.range = {3, 5};
  ASSERT_TRUE(members->find(wanted).ok());
  EXPECT_EQ(members->find(wanted)->front().range, (LayerRange{3, 5}));
  wanted.excluded = {node.id()};
  EXPECT_EQ(members->find(wanted).status().code(), StatusCode::kUnavailable);
}

TEST_F(MembershipTest, RoutesAreServedWhilePlanningWaitsForTheDisk) {
  join();
  disk->hold = true;
  std::thread heartbeat([this] { beat({shard({2, 6})}); });
  while (!disk->waits) std::this_thread::yield();
  auto served = std::async(std::launch::async, [this] {
    EXPECT_TRUE(members->ready().ok());
    EXPECT_TRUE(members->available(kModel).ok());
    EXPECT_TRUE(members->joined(node.id()).ok());
    EXPECT_EQ(members->key_of(node.id()), node.public_key());
    EXPECT_EQ(members->freshness_of(node.id()), (wire::Freshness{node.id(), {start, number}}));
    EXPECT_TRUE(members->find_room(kModel, 2, 10));
    head::RouteWanted wanted;
    wanted.identity = kModel;
    wanted.range = {2, 6};
    EXPECT_TRUE(members->find(wanted).ok());
  });
  EXPECT_EQ(served.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  disk->hold = false;
  heartbeat.join();
}

TEST_F(MembershipTest, ReplaysUnknownNodesAndOldLeasesAreRefusedByName) {
  EXPECT_EQ(code(call(wire::kHeartbeatRoute, wire::to_json(wire::Heartbeat{}))), "unknown_node");
  const std::string first = wire::to_json(join_message());
  ASSERT_EQ(call(wire::kJoinRoute, first).status, 200);
  EXPECT_EQ(code(call(wire::kJoinRoute, first)), "replay");
  join();
  wire::Heartbeat old;
  old.stamp = {start, ++number};
  old.lease = last.lease - 1;
  EXPECT_EQ(code(call(wire::kHeartbeatRoute, wire::to_json(old))), "wrong_lease");
}

TEST_F(MembershipTest, MalformedMessagesAreRefusedAndTheNextOneWorks) {
  for (const char* body : {"", "{", "[]", "{\"stamp\":7}"}) {
    EXPECT_EQ(code(call(wire::kJoinRoute, body)), "bad_message") << body;
  }
  wire::Join nowhere = join_message();
  nowhere.address = "nowhere";
  EXPECT_EQ(code(call(wire::kJoinRoute, wire::to_json(nowhere))), "bad_message");
  EXPECT_EQ(join().node, node.id());
}

TEST_F(MembershipTest, ANodeOfAnotherMachineCannotBeReachedAtALoopbackAddress) {
  remote_ip = "10.0.0.7";
  for (const char* address : {"127.0.0.1:9", "localhost:9", "[::1]:9"}) {
    wire::Join join = join_message();
    join.address = address;
    const auto response = call(wire::kJoinRoute, wire::to_json(join));
    EXPECT_EQ(code(response), "bad_message") << address;
    EXPECT_THAT(response.body, HasSubstr("--advertise"));
  }
  wire::Join reachable = join_message();
  reachable.address = "10.0.0.7:9";
  EXPECT_EQ(call(wire::kJoinRoute, wire::to_json(reachable)).status, 200);
}

TEST_F(MembershipTest, ANodeOfAnotherWireVersionIsToldWhatToInstall) {
  wire::Join other = join_message();
  other.wire_versions = {77};
  const auto response = call(wire::kJoinRoute, wire::to_json(other));
  EXPECT_EQ(response.status, 426);
  const auto refusal = wire::parse_control_error(response.body);
  ASSERT_TRUE(refusal.ok());
  EXPECT_EQ(refusal->code, "upgrade");
  EXPECT_FALSE(refusal->install.empty());
}

TEST_F(MembershipTest, AJoinWithoutOrWithAnotherJoinKeyIsRefused) {
  const JoinKey key = JoinKey::make(tracker->public_key());
  begin(key);
  const std::string body = wire::to_json(join_message());
  EXPECT_EQ(code(call(wire::kJoinRoute, body)), "join_key");
  const JoinKey wrong = JoinKey::make(tracker->public_key());
  EXPECT_EQ(code(call(wire::kJoinRoute, body, {{std::string(kJoinHeader), wrong.prove(body).hex()}})),
            "join_key");
  EXPECT_EQ(call(wire::kJoinRoute, body, {{std::string(kJoinHeader), key.prove(body).hex()}}).status, 200);
}

TEST_F(MembershipTest, AfterARestartTheEpochIsHigherAndWhatNodesHoldIsNotOrderedAgain) {
  join();
  const Epoch before = beat({shard({2, 6})}).epoch;
  begin();
  EXPECT_FALSE(members->ready().ok());  // remembered is not ready
  ++start;
  number = 0;
  const auto reply = join({shard({2, 6})});
  EXPECT_GE(reply.epoch, before);
  EXPECT_THAT(beat({shard({2, 6})}).directives, IsEmpty());
  EXPECT_TRUE(members->ready().ok());
}

TEST_F(MembershipTest, ANodeThatStartedAnewWithinItsLeaseHasLostItsSessions) {
  join();
  join();
  EXPECT_THAT(lost, IsEmpty());
  ++start;
  join();
  EXPECT_THAT(lost, ElementsAre(node.id()));
}

TEST_F(MembershipTest, ALeavingNodeIsForgottenAtOnce) {
  join();
  beat({shard({2, 6})});
  wire::Leave leave;
  leave.stamp = {start, ++number};
  leave.lease = last.lease;
  ASSERT_EQ(call(wire::kLeaveRoute, wire::to_json(leave)).status, 200);
  EXPECT_FALSE(members->ready().ok());
  EXPECT_FALSE(members->joined(node.id()).ok());
}

TEST_F(MembershipTest, CoverageTellsLayersAndNodes) {
  join();
  beat({shard({2, 6})});
  const json::Value body = members->coverage();
  EXPECT_EQ(body.at("models").at(0).at("layer_count"), 6);
  EXPECT_EQ(body.at("models").at(0).at("layers").at(0).at("ready"), 1);
  EXPECT_EQ(body.at("nodes").as_array().size(), 2u);
  EXPECT_EQ(body.at("nodes").at(0).at("address"), "head");
  EXPECT_EQ(body.at("nodes").at(1).at("shards").at(0).at("begin"), 2);
}

}  // namespace
}  // namespace mesh::tracker
