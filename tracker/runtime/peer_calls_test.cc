#include "tracker/runtime/peer_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/net/test_listener.h"
#include "common/net/test_server.h"

namespace mesh::tracker {
namespace {

using namespace std::chrono_literals;

class PeerCallsTest : public net::ServerTest {
 protected:
  std::string healthy_url() {
    route("POST", "/ask", [](net::Request& request) { return net::Response::text("heard " + request.body); });
    start();
    return "http://" + server_->address();
  }
  std::shared_ptr<const KeyPair> signer_ = std::make_shared<const KeyPair>(KeyPair::generate());
};

/// Takes connections and says nothing, as a host does that lost its power behind a live switch.
class DarkPeer {
 public:
  std::string url() const { return "http://127.0.0.1:" + std::to_string(listener_.port()); }

 private:
  net::TestListener listener_{std::vector<std::string>(64), net::TestListener::After::kStayOpen};
};

TEST_F(PeerCallsTest, DarkNodesHoldUpNoCallsToOthers) {
  const std::string healthy = healthy_url();
  DarkPeer dark;
  PeerCalls peers({.threads = 4, .timeout = 2s}, signer_);
  std::atomic<int> dark_ended = 0;
  net::TestEvent& answered = event();
  int ended_before = -1;
  for (int i = 0; i < 64; ++i)
    peers.post(dark.url(), "/ask", "", [&](const StatusOr<std::string>& reply) {
      EXPECT_FALSE(reply.ok());
      ++dark_ended;
    });
  peers.post(healthy, "/ask", "me", [&](const StatusOr<std::string>& reply) {
    EXPECT_EQ(reply.value_or("nothing"), "heard me");
    ended_before = dark_ended;
    answered.set();
  });
  EXPECT_TRUE(answered.wait());
  EXPECT_EQ(ended_before, 0) << "it waited for calls to the dark node";
  peers.stop();
  EXPECT_EQ(dark_ended, 64) << "each call has an end";
}

TEST_F(PeerCallsTest, OnceDoubtfulManyDarkNodesHaveHalfOfTheThreads) {
  const std::string healthy = healthy_url();
  std::vector<DarkPeer> dark(6);
  PeerCalls peers({.threads = 4, .timeout = 1s}, signer_);
  std::atomic<int> failed = 0;
  net::TestEvent& all_doubtful = event();
  for (const DarkPeer& peer : dark)
    peers.post(peer.url(), "/ask", "", [&](const StatusOr<std::string>&) {
      if (++failed == 6) all_doubtful.set();
    });
  ASSERT_TRUE(all_doubtful.wait());
  failed = 0;
  for (int round = 0; round < 8; ++round)
    for (const DarkPeer& peer : dark)
      peers.post(peer.url(), "/ask", "", [&](const StatusOr<std::string>&) { ++failed; });
  net::TestEvent& answered = event();
  int failed_before = -1;
  peers.post(healthy, "/ask", "me", [&](const StatusOr<std::string>& reply) {
    EXPECT_TRUE(reply.ok());
    failed_before = failed;
    answered.set();
  });
  EXPECT_TRUE(answered.wait());
  EXPECT_EQ(failed_before, 0);
}

TEST_F(PeerCallsTest, AnErrorThatANodeAnswersIsNoDoubt) {
  const std::string healthy = healthy_url();
  PeerCalls peers({.threads = 1}, signer_);
  net::TestEvent& refused = event();
  net::TestEvent& answered = event();
  peers.post(healthy, "/nowhere", "", [&](const StatusOr<std::string>& reply) {
    EXPECT_EQ(reply.status().code(), StatusCode::kNotFound);
    refused.set();
  });
  peers.post(healthy, "/ask", "me", [&](const StatusOr<std::string>& reply) {
    EXPECT_EQ(reply.value_or("nothing"), "heard me");
    answered.set();
  });
  EXPECT_TRUE(refused.wait());
  EXPECT_TRUE(answered.wait());
}

TEST_F(PeerCallsTest, AfterStopCallsEndAtOnce) {
  PeerCalls peers({.threads = 1}, signer_);
  peers.stop();
  bool ended = false;
  peers.post("http://127.0.0.1:9", "/ask", "", [&](const StatusOr<std::string>& reply) {
    EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable);
    ended = true;
  });
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace mesh::tracker
