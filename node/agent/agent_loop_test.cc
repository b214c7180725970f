#include "node/agent/agent_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/hub/manifest.h"
#include "common/hub/open_model.h"
#include "common/identity/random.h"
#include "common/identity/signed_message.h"
#include "common/net/server.h"
#include "node/runtime/fake_engine.h"

namespace mesh {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Open final : public net::AccessPolicy {
 public:
  Status admit(net::Access, net::Request&) override { return absl::OkStatus(); }
  Status admit_body(net::Access, net::Request&) override { return absl::OkStatus(); }
};

/// As much of a tracker as an agent can see: joins, heartbeats with directives, a model's files.
class MiniTracker {
 public:
  explicit MiniTracker(std::shared_ptr<hub::ModelFiles> files) : files_(std::move(files)) {
    manifest_ = *hub::make_manifest(*files_, {});
    entry_ = {
        hub::identity_of(manifest_, "bfloat16", "float32"), "tiny", "llama", "bfloat16", "float32", 6, 0};
    const auto control = [this](std::string_view route, auto handler) {
      return net::Route{"POST",
                        std::string(route),
                        net::Access::kAnyone,
                        [this, handler](net::Request& r) { return (this->*handler)(r); },
                        1 << 20,
                        false};
    };
    std::vector<net::Route> routes;
    routes.push_back(control(wire::kJoinRoute, &MiniTracker::join));
    routes.push_back(control(wire::kHeartbeatRoute, &MiniTracker::heartbeat));
    routes.push_back(control(wire::kLeaveRoute, &MiniTracker::leave));
    routes.push_back({"GET", "/mesh/v1/models/{identity}/manifest", net::Access::kAnyone,
                      [this](net::Request&) { return net::Response::text(hub::manifest_json(manifest_)); }, 0,
                      false});
    routes.push_back({"GET", "/mesh/v1/models/{identity}/files/{name}", net::Access::kAnyone,
                      [this](net::Request& r) { return file(r); }, 0, false});
    server_ = *net::Server::start({}, std::move(routes), std::make_shared<Open>());
  }
  ~MiniTracker() { server_->stop({}); }

  std::string url() const { return "http://" + server_->address(); }
  const wire::CatalogueEntry& entry() const { return entry_; }
  void order(wire::DirectiveKind kind, LayerRange layers) {
    wire::Directive directive;
    directive.id = random_id<wire::DirectiveId>();
    directive.node = node_;
    directive.epoch = Epoch{1};
    directive.kind = kind;
    directive.model = entry_.model;
    directive.layers = layers;
    directive.quantization = "bfloat16";
    directive.expires_in_ms = 30'000;
    wire::SignedDirective out;
    out.body = wire::to_json(directive);
    out.signature = std::string(key_.sign(std::string(wire::kDirectiveSignaturePrefix) + out.body).view());
    const std::lock_guard lock(mutex_);
    orders_.push_back(out);
  }
  /// As after a restart without a memory of nodes.
  void forget() {
    const std::lock_guard lock(mutex_);
    lease_ = 0;
  }
  /// Waits until `condition` of what was last heard holds.
  template <class Condition>
  bool wait(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(10), [&] { return condition(*this); });
  }

  // Under the lock of wait().
  std::vector<wire::Join> joins;
  wire::Heartbeat beat;
  std::vector<wire::DirectiveStatus> ended;
  bool left = false;

 private:
  net::Response signed_response(std::string_view route, std::string body, int status = 200) {
    net::Response response;
    response.status = status;
    const MessageSignature signature = sign_message(key_, route, body);
    response.headers.add(kKeyHeader, signature.key_hex);
    response.headers.add(kSignatureHeader, signature.signature_hex);
    response.body = std::move(body);
    return response;
  }
  net::Response join(net::Request& request) {
    const std::lock_guard lock(mutex_);
    const auto message = wire::parse_join(request.body);
    EXPECT_TRUE(message.ok()) << message.status();
    joins.push_back(*message);
    node_ = node_id_of(*PublicKey::parse(request.headers.get(kKeyHeader)));
    wire::JoinReply reply;
    reply.answers = message->stamp;
    reply.node = node_;
    reply.lease = lease_ = 7 + joins.size();
    reply.reply = ++reply_;
    reply.heartbeat_ms = 100;
    reply.lease_ms = 3000;
    reply.epoch = Epoch{1};
    reply.catalogue = {entry_};
    changed_.notify_all();
    return signed_response(wire::kJoinRoute, wire::to_json(reply));
  }
  net::Response heartbeat(net::Request& request) {
    const std::lock_guard lock(mutex_);
    const auto message = wire::parse_heartbeat(request.body);
    EXPECT_TRUE(message.ok()) << message.status();
    if (message->lease != lease_) {
      return signed_response(wire::kHeartbeatRoute,
                             wire::to_json(wire::ControlError{"unknown_node", "who?", ""}), 409);
    }
    beat = *message;
    for (const auto& status : beat.directives) {
      if (is_final(status.state)) ended.push_back(status);
    }
    wire::HeartbeatReply reply;
    reply.answers = message->stamp;
    reply.lease = lease_;
    reply.reply = ++reply_;
    reply.epoch = Epoch{1};
    reply.directives = std::exchange(orders_, {});
    changed_.notify_all();
    return signed_response(wire::kHeartbeatRoute, wire::to_json(reply));
  }
  net::Response leave(net::Request&) {
    const std::lock_guard lock(mutex_);
    left = true;
    changed_.notify_all();
    return signed_response(wire::kLeaveRoute, "{}");
  }
  net::Response file(net::Request& request) {
    const std::string& name = request.params.at("name");
    const std::uint64_t size = files_->files().find(name)->second;
    const auto range = net::parse_range(request.headers.get("Range"), size);
    EXPECT_TRUE(range.ok() && range->has_value()) << "byte ranges only";
    auto response = net::Response::binary(*files_->read(name, {(*range)->begin, (*range)->size()}));
    response.status = 206;
    response.headers.add("Content-Range", net::content_range_header(**range, size));
    return response;
  }

  const std::shared_ptr<hub::ModelFiles> files_;
  hub::Manifest manifest_;
  wire::CatalogueEntry entry_;
  const KeyPair key_ = KeyPair::generate();
  std::mutex mutex_;
  std::condition_variable changed_;
  NodeId node_;
  std::uint64_t lease_ = 0;
  std::uint64_t reply_ = 0;
  std::vector<wire::SignedDirective> orders_;
  std::unique_ptr<net::Server> server_;
};

class AgentLoopTest : public testing::Test {
 protected:
  AgentLoopTest() {
    std::string name = testing::TempDir() + "agentXXXXXX";
    folder_ = ::mkdtemp(name.data());
    share_ = *HostShare::enter(folder_ / "run", {"test", 1 << 20, 1});
    node_ = Node::start({}, std::make_unique<FakeEngine>(), nullptr);
    start();
  }
  ~AgentLoopTest() override {
    agent_.reset();
    node_->stop();
    std::filesystem::remove_all(folder_);
  }

  void start() {
    AgentStateFile state = *AgentStateFile::begin_start(folder_);
    AgentOptions options;
    options.node = identity_->id();
    options.self.stamp.start = state.start();
    options.self.quantizations = {"bfloat16"};
    options.self.compute_types = {"float32"};
    options.jitter_seed = 1;
    const TrackerLink::Options tracker{tracker_.url(), identity_, std::nullopt};
    const auto pin = std::make_shared<TrackerLink::Pin>(std::nullopt);
    auto models = std::make_shared<ModelSource>(ModelSource::Options{tracker, folder_ / "cache", {}}, pin);
    agent_ = std::make_unique<AgentLoop>(
        std::move(options),
        AgentLoop::Parts{*node_, *share_, std::move(models), tracker, pin, std::move(state), stamps_,
                         log::Logger::silent(), [](const Status& why) { FAIL() << why; }});
  }

  const std::shared_ptr<const KeyPair> identity_ = std::make_shared<const KeyPair>(KeyPair::generate());
  MiniTracker tracker_{*hub::open_folder(MESH_SOURCE_DIR "/tests/golden/checkpoints/tiny-llama")};
  std::filesystem::path folder_;
  std::unique_ptr<HostShare> share_;
  std::unique_ptr<Node> node_;
  std::shared_ptr<pipeline::RecentStamps> stamps_ = std::make_shared<pipeline::RecentStamps>(identity_->id());
  std::unique_ptr<AgentLoop> agent_;
};

TEST_F(AgentLoopTest, LoadsAndDropsAsItIsTold) {
  ASSERT_TRUE(tracker_.wait([](auto& heard) { return heard.beat.lease != 0; }));
  tracker_.order(wire::DirectiveKind::kLoadShard, {0, 3});
  ASSERT_TRUE(tracker_.wait([](auto& heard) { return heard.ended.size() == 1; }));
  EXPECT_EQ(tracker_.ended[0].state, wire::DirectiveState::kDone) << tracker_.ended[0].message;
  ASSERT_TRUE(tracker_.wait([](auto& heard) { return heard.beat.shards.size() == 1; }));
  EXPECT_EQ(tracker_.beat.shards[0].state, wire::ShardState::kReady);
  tracker_.order(wire::DirectiveKind::kDropShard, {0, 3});
  ASSERT_TRUE(tracker_.wait([](auto& heard) { return heard.beat.shards.empty(); }));
  EXPECT_TRUE(node_->shards().empty());
}

TEST_F(AgentLoopTest, ATrackerThatForgotIsJoinedAgainAndNothingIsLoadedAgain) {
  ASSERT_TRUE(tracker_.wait([](auto& heard) { return heard.beat.lease != 0; }));
  tracker_.order(wire::DirectiveKind::kLoadShard, {3, 6});
  ASSERT_TRUE(
      tracker_.wait([](auto& heard) { return !heard.beat.shards.empty() && heard.ended.size() == 1; }));
  tracker_.forget();
  ASSERT_TRUE(tracker_.wait([](auto& heard) { return heard.joins.size() == 2; }));
  ASSERT_EQ(tracker_.joins[1].shards.size(), 1u);
  EXPECT_EQ(tracker_.joins[1].shards[0].layers, (LayerRange{3, 6}));
  EXPECT_EQ(tracker_.joins[1].shards[0].state, wire::ShardState::kReady);
  EXPECT_GT(tracker_.joins[1].stamp, tracker_.joins[0].stamp);
}

TEST_F(AgentLoopTest, ARangeOutsideTheModelIsReportedRefused) {
  ASSERT_TRUE(tracker_.wait([](auto& heard) { return heard.beat.lease != 0; }));
  tracker_.order(wire::DirectiveKind::kLoadShard, {3, 60});
  ASSERT_TRUE(tracker_.wait([](auto& heard) { return heard.ended.size() == 1; }));
  EXPECT_EQ(tracker_.ended[0].state, wire::DirectiveState::kRefused);
}

TEST_F(AgentLoopTest, WhatTheTrackerHeardMakesItsOpeningsFresh) {
  ASSERT_TRUE(tracker_.wait([](auto& heard) { return heard.beat.lease != 0; }));
  wire::Stamp joined, beat;
  ASSERT_TRUE(tracker_.wait([&](auto& heard) {
    joined = heard.joins.back().stamp;
    beat = heard.beat.stamp;
    return true;
  }));
  const TimePoint now = SteadyClock().now();
  EXPECT_TRUE(stamps_->check({identity_->id(), joined}, now).ok());
  EXPECT_TRUE(stamps_->check({identity_->id(), beat}, now).ok());
  EXPECT_FALSE(stamps_->check({identity_->id(), {beat.start, beat.number + 1000}}, now).ok());
}

TEST_F(AgentLoopTest, LeavingSaysGoodbye) {
  ASSERT_TRUE(tracker_.wait([](auto& heard) { return heard.beat.lease != 0; }));
  agent_->begin_drain();
  ASSERT_TRUE(tracker_.wait([](auto& heard) { return heard.beat.draining; }));
  agent_->leave();
  EXPECT_TRUE(tracker_.wait([](auto& heard) { return heard.left; }));
}

}  // namespace
}  // namespace mesh
