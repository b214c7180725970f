#include <gtest/gtest.h>

#include "common/hub/open_model.h"
#include "common/identity/random.h"
#include "node/runtime/test_mesh.h"

namespace mesh {
namespace {

constexpr std::string_view kLocal = "http://127.0.0.1:1";

/// Collects what an embedded node hands over.
class Sink final : public HeadSink {
 public:
  std::vector<wire::TokenAnswer> on_tokens(const std::vector<wire::TokenMessage>& tokens) override {
    std::vector<wire::TokenAnswer> answers;
    const std::lock_guard lock(mutex_);
    for (const wire::TokenMessage& one : tokens) {
      tokens_[one.position] = one.token;
      answers.push_back({one.session, one.position, wire::TokenCode::kTaken});
    }
    changed_.notify_all();
    return answers;
  }
  void on_report(const wire::Report& report) override {
    const std::lock_guard lock(mutex_);
    reports_.push_back(report);
    changed_.notify_all();
  }
  void on_cursor(const wire::CursorEntry& cursor) override {
    const std::lock_guard lock(mutex_);
    next_ = cursor.cursor.next;
    changed_.notify_all();
  }

  TokenId wait_token(Position position) {
    std::unique_lock lock(mutex_);
    const bool came =
        changed_.wait_for(lock, std::chrono::seconds(10), [&] { return tokens_.contains(position); });
    return came ? tokens_.at(position) : -1;
  }
  bool wait_cursor(Position next) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return next_ == next; });
  }
  bool wait_report() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return !reports_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Position, TokenId> tokens_;
  std::vector<wire::Report> reports_;
  Position next_ = 0;
};

class EmbeddedTest : public testing::Test {
 protected:
  std::unique_ptr<Node> start(const engine::ShardSpec& spec) {
    NodeOptions options;
    options.local_head_url = kLocal;
    auto engine = std::make_unique<FakeEngine>();
    engine_ = engine.get();
    auto node = Node::start(std::move(options), std::move(engine), &sink_);
    const auto checkpoint =
        *hub::Checkpoint::open(*hub::open_folder(MESH_SOURCE_DIR "/tests/golden/checkpoints/tiny-llama"));
    EXPECT_TRUE(node->load_shard(checkpoint, identity_, spec, {}).ok());
    return node;
  }
  wire::OpenRequest request(LayerRange range) const {
    wire::OpenRequest request;
    request.session = session_;
    request.generation = Generation{1};
    request.identity = identity_;
    request.range = range;
    request.takes_ids = true;
    request.max_tokens = 64;
    request.head_url = kLocal;
    request.emit_from = 0;
    request.secret = secret_;
    return request;
  }
  Arrival ids(LayerRange range, std::uint64_t seq, Position start, std::vector<TokenId> ids) const {
    Arrival arrival;
    arrival.segment.session = session_;
    arrival.segment.identity = identity_;
    arrival.segment.generation = Generation{1};
    arrival.segment.seq = {seq};
    arrival.segment.range = range;
    arrival.segment.start = start;
    arrival.segment.rows = static_cast<std::uint32_t>(ids.size());
    arrival.segment.sample = true;
    arrival.segment.ids = std::move(ids);
    return arrival;
  }

  const ModelIdentity identity_ = random_id<ModelIdentity>();
  const SessionId session_ = random_id<SessionId>();
  const SessionSecret secret_ = random_id<SessionSecret>();
  Sink sink_;
  FakeEngine* engine_ = nullptr;
};

TEST_F(EmbeddedTest, AHeadThatHoldsAllLayersGetsItsTokensWithoutHttp) {
  const auto node = start({{0, 6}, true, true});
  wire::OpenRequest open = request({0, 6});
  open.tail = wire::TailSetup{};
  ASSERT_TRUE(node->open(open).opened());
  const auto expected = FakeEngine::expected({4, 5}, {{0, 6}}, 2);
  node->accept({ids({0, 6}, 1, 0, {4, 5})});
  EXPECT_EQ(sink_.wait_token(2), expected[0]);
  EXPECT_TRUE(sink_.wait_cursor(2));
  node->accept({ids({0, 6}, 2, 2, {expected[0]})});
  EXPECT_EQ(sink_.wait_token(3), expected[1]);
}

TEST_F(EmbeddedTest, AHeadWithoutLayersEmbedsAndSendsOn) {
  TestHead tail_head(identity_);
  TestNode whole(identity_, {0, 6});
  const auto node = start({{0, 0}, true, false});
  wire::OpenRequest tail = request({0, 6});
  tail.takes_ids = false;
  tail.head_url = tail_head.url();
  tail.tail = wire::TailSetup{};
  ASSERT_TRUE(whole.node().open(tail).opened());
  wire::OpenRequest open = request({0, 0});
  open.next = whole.address();
  const wire::OpenReply reply = node->open(open);
  ASSERT_TRUE(reply.opened()) << reply.message;
  node->accept({ids({0, 0}, 1, 0, {4, 5})});
  EXPECT_EQ(tail_head.wait_token(session_, 2), FakeEngine::expected({4, 5}, {{0, 0}, {0, 6}}, 1)[0]);
}

TEST_F(EmbeddedTest, ReportsComeToTheSink) {
  const auto node = start({{0, 6}, true, true});
  wire::OpenRequest open = request({0, 6});
  open.tail = wire::TailSetup{};
  ASSERT_TRUE(node->open(open).opened());
  engine_->fail_next_step(error(StatusCode::kInternal, "broken"));
  node->accept({ids({0, 6}, 1, 0, {4})});
  EXPECT_TRUE(sink_.wait_report());
}

TEST_F(EmbeddedTest, AStoppedNodeAnswersAndNeverHangs) {
  const auto node = start({{0, 6}, true, true});
  node->stop();
  EXPECT_EQ(node->open(request({0, 6})).code, wire::OpenCode::kDraining);
  EXPECT_EQ(node->accept({ids({0, 6}, 1, 0, {4})})[0].code, wire::AnswerCode::kUnknownSession);
  EXPECT_FALSE(node->cursors({{{session_, 0}}}).hops[0].known);
  EXPECT_FALSE(node->forward({}).ok());
}

}  // namespace
}  // namespace mesh
