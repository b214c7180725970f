#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/net/server.h"
#include "node/node.h"
#include "node/runtime/fake_engine.h"

namespace mesh {

/// A node with a fake engine behind a real server on a loopback port.
class TestNode {
 public:
  /// `port` 0: any. `steps_at_once`: FakeEngine's.
  TestNode(const ModelIdentity& identity, LayerRange layers, int port = 0, NodeOptions options = {},
           std::size_t steps_at_once = 1);
  ~TestNode() { stop(); }
  /// As if the program were killed: nothing is drained.
  void stop();

  Node& node() { return *node_; }
  FakeEngine& engine() { return *engine_; }
  int port() const { return port_; }
  std::size_t connections() const { return server_->open_connections(); }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  const LayerRange& layers() const { return layers_; }
  wire::HopAddress address() const { return {{}, url(), layers_}; }

 private:
  LayerRange layers_;
  FakeEngine* engine_ = nullptr;
  std::unique_ptr<Node> node_;
  std::unique_ptr<net::Server> server_;
  int port_ = 0;
};

/// A very small head: opens sessions along nodes in a row, feeds ids to the first and takes tokens over HTTP.
class TestHead {
 public:
  explicit TestHead(const ModelIdentity& identity);
  ~TestHead();

  struct Session {
    SessionId id;
    Generation generation{1};
    SessionSecret secret;
    Seq seq;
  };
  std::string url() const;

  /// Opens the session at all nodes, the tail first.
  void open(Session& session, const std::vector<TestNode*>& route);
  /// A new generation over `route`: fences every hop, then opens each from where its successor is. Ids that
  /// hop 0 lacks are the caller's to send.
  void reopen(Session& session, const std::vector<TestNode*>& route);
  wire::OpenRequest request(const Session& session, const std::vector<TestNode*>& route,
                            std::size_t index) const;
  /// Gives ids to the first hop; the last row's successor is sampled.
  wire::SegmentAnswer send(Session& session, TestNode& first, Position start, std::vector<TokenId> ids);
  /// Sends a prompt in chunks and then each token as it comes, until `tokens` have come.
  std::vector<TokenId> generate(Session& session, TestNode& first, const std::vector<TokenId>& prompt,
                                std::size_t tokens);
  /// The token at a position, waited for; −1 after ten seconds.
  TokenId wait_token(const SessionId& session, Position position);
  std::vector<wire::Report> reports() const;

 private:
  net::Response take_tokens(net::Request& request);
  net::Response take_report(net::Request& request);

  const ModelIdentity identity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<SessionId, Position>, TokenId> tokens_;
  std::vector<wire::Report> reports_;
  std::unique_ptr<net::Server> server_;
};

}  // namespace mesh
