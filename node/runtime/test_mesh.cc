#include "node/runtime/test_mesh.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "common/hub/open_model.h"
#include "common/identity/random.h"
#include "common/wire/session_json.h"
#include "common/wire/token_codec.h"
#include "node/runtime/access.h"
#include "node/runtime/routes.h"

namespace mesh {
namespace {

std::shared_ptr<hub::Checkpoint> any_checkpoint() {
  auto files = hub::open_folder(MESH_SOURCE_DIR "/tests/golden/checkpoints/tiny-llama");
  EXPECT_TRUE(files.ok()) << files.status();
  auto checkpoint = hub::Checkpoint::open(*std::move(files));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *checkpoint;
}

/// Below the range that Linux takes for sockets without a port: no other program gets it while the node is
/// down.
int any_port() {
  std::random_device random;
  return std::uniform_int_distribution(15'000, 32'000)(random);
}

}  // namespace

TestNode::TestNode(const ModelIdentity& identity, LayerRange layers, int port, NodeOptions options,
                   std::size_t steps_at_once)
    : layers_(layers) {
  auto engine = std::make_unique<FakeEngine>(steps_at_once);
  engine_ = engine.get();
  NodeObserver* const observer = options.observer;
  node_ = Node::start(std::move(options), std::move(engine), nullptr);
  const engine::ShardSpec spec{layers, layers.begin == 0, layers.end == FakeEngine::kLayers};
  const Status loaded = node_->load_shard(any_checkpoint(), identity, spec, {});
  EXPECT_TRUE(loaded.ok()) << loaded;
  RouteContext context;
  context.observer = observer;
  context.identity = std::make_shared<const KeyPair>(KeyPair::generate());
  context.tracker = [] { return std::nullopt; };
  context.check_fresh = [](const wire::Freshness&) { return absl::OkStatus(); };
  const auto start = [&](int at) {
    net::ServerOptions server;
    server.listen = "127.0.0.1:" + std::to_string(at);
    return net::Server::start(server, session_routes(*node_, context),
                              std::make_shared<NodeAccess>(std::nullopt));
  };
  auto started = start(port == 0 ? any_port() : port);
  while (!started.ok() && port == 0) started = start(any_port());
  EXPECT_TRUE(started.ok()) << started.status();
  server_ = *std::move(started);
  port_ = server_->port();
}

void TestNode::stop() {
  if (server_ != nullptr) server_->stop({});
  server_ = nullptr;
  engine_ = nullptr;
  node_ = nullptr;
}

TestHead::TestHead(const ModelIdentity& identity) : identity_(identity) {
  std::vector<net::Route> routes;
  routes.push_back({"POST", std::string(wire::kTokensRoute), net::Access::kSession,
                    [this](net::Request& request) { return take_tokens(request); }, 1 << 20, false});
  routes.push_back({"POST", std::string(wire::kReportRoute), net::Access::kSession,
                    [this](net::Request& request) { return take_report(request); }, 1 << 20, false});
  auto started = net::Server::start({}, std::move(routes), std::make_shared<NodeAccess>(std::nullopt));
  EXPECT_TRUE(started.ok()) << started.status();
  server_ = *std::move(started);
}

TestHead::~TestHead() {
  server_->stop({});
}

std::string TestHead::url() const {
  return "http://" + server_->address();
}

net::Response TestHead::take_tokens(net::Request& request) {
  const auto tokens = wire::parse_tokens(request.body);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  std::vector<wire::TokenAnswer> answers;
  {
    const std::lock_guard lock(mutex_);
    for (const wire::ReceivedToken& one : *tokens) {
      tokens_[{one.message.session, one.message.position}] = one.message.token;
      answers.push_back({one.message.session, one.message.position, wire::TokenCode::kTaken});
    }
  }
  changed_.notify_all();
  return net::Response::binary(wire::encode_token_answers(answers), wire::kAnswersContentType);
}

net::Response TestHead::take_report(net::Request& request) {
  const auto report = wire::read_report(request.body);
  EXPECT_TRUE(report.ok()) << report.status();
  const std::lock_guard lock(mutex_);
  reports_.push_back(*report);
  changed_.notify_all();
  return net::Response::text("{}", net::kJsonType);
}

std::vector<wire::Report> TestHead::reports() const {
  const std::lock_guard lock(mutex_);
  return reports_;
}

wire::OpenRequest TestHead::request(const Session& session, const std::vector<TestNode*>& route,
                                    std::size_t index) const {
  wire::OpenRequest request;
  request.session = session.id;
  request.generation = session.generation;
  request.identity = identity_;
  request.range = route[index]->layers();
  request.takes_ids = index == 0;
  request.max_tokens = 2048;
  if (index + 1 < route.size()) {
    request.next = route[index + 1]->address();
  } else {
    request.tail = wire::TailSetup{};
  }
  request.head_url = url();
  request.emit_from = 0;
  request.secret = session.secret;
  return request;
}

void TestHead::open(Session& session, const std::vector<TestNode*>& route) {
  for (std::size_t i = route.size(); i-- > 0;) {
    const wire::OpenReply reply = route[i]->node().open(request(session, route, i));
    EXPECT_TRUE(reply.opened()) << reply.message;
  }
}

void TestHead::reopen(Session& session, const std::vector<TestNode*>& route) {
  session.generation = session.generation.next();
  session.secret = random_id<SessionSecret>();
  session.seq = {};
  std::vector<wire::OpenReply> replies;
  for (std::size_t i = 0; i < route.size(); ++i) {
    wire::OpenRequest fence = request(session, route, i);
    fence.emit_from.reset();
    replies.push_back(route[i]->node().open(fence));
    EXPECT_TRUE(replies.back().opened()) << replies.back().message;
  }
  for (std::size_t i = route.size(); i-- > 0;) {
    wire::OpenRequest again = request(session, route, i);
    // The tail emits from its own cursor: the tokens before it are at the head.
    again.emit_from = i + 1 < route.size() ? replies[i + 1].cursor.next : replies[i].cursor.next;
    const wire::OpenReply reply = route[i]->node().open(again);
    EXPECT_TRUE(reply.opened()) << reply.message;
  }
}

wire::SegmentAnswer TestHead::send(Session& session, TestNode& first, Position start,
                                   std::vector<TokenId> ids) {
  session.seq = session.seq.next();
  wire::Segment segment;
  segment.session = session.id;
  segment.identity = identity_;
  segment.generation = session.generation;
  segment.seq = session.seq;
  segment.range = first.layers();
  segment.start = start;
  segment.rows = static_cast<std::uint32_t>(ids.size());
  segment.lane = ids.size() > 1 ? wire::Lane::kBulk : wire::Lane::kDecode;
  segment.sample = true;
  segment.ids = std::move(ids);
  std::vector<Arrival> arrivals;
  arrivals.push_back({std::move(segment), true});
  return first.node().accept(std::move(arrivals)).front();
}

TokenId TestHead::wait_token(const SessionId& session, Position position) {
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_for(lock, std::chrono::seconds(10),
                                      [&] { return tokens_.contains({session, position}); });
  return came ? tokens_.at({session, position}) : -1;
}

std::vector<TokenId> TestHead::generate(Session& session, TestNode& first, const std::vector<TokenId>& prompt,
                                        std::size_t tokens) {
  constexpr std::size_t kChunk = 128;
  for (std::size_t at = 0; at < prompt.size(); at += kChunk) {
    const auto end = std::min(prompt.size(), at + kChunk);
    const auto answer = send(session, first, static_cast<Position>(at),
                             {prompt.begin() + static_cast<std::ptrdiff_t>(at),
                              prompt.begin() + static_cast<std::ptrdiff_t>(end)});
    EXPECT_EQ(answer.code, wire::AnswerCode::kAccepted);
  }
  std::vector<TokenId> answer;
  auto position = static_cast<Position>(prompt.size());
  while (answer.size() < tokens) {
    const TokenId token = wait_token(session.id, position);
    EXPECT_NE(token, -1) << "no token at position " << position;
    if (token < 0) break;
    answer.push_back(token);
    if (answer.size() < tokens) send(session, first, position, {token});
    ++position;
  }
  return answer;
}

}  // namespace mesh
