#include "common/net/connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>

namespace mesh::net {
namespace {

using namespace std::chrono_literals;

/// Both ends of a connection whose buffers are full.
class FullConnection : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    client = ends[1];
    connection = std::make_unique<Connection>(1, ends[0], "", 0);
    while (connection->send(std::string(65536, 'x')) != Connection::kWouldBlock) {
    }
  }
  void TearDown() override { ::close(client); }
  static TimePoint in(Duration time) { return std::chrono::steady_clock::now() + time; }

  int client = -1;
  std::unique_ptr<Connection> connection;
};

TEST_F(FullConnection, SendingWaitsForRoomAndNoLongerThanItsDeadline) {
  EXPECT_FALSE(connection->wait_to_send(in(1ms)));
  std::string all(1 << 20, ' ');
  while (::recv(client, all.data(), all.size(), MSG_DONTWAIT) > 0) {
  }
  EXPECT_TRUE(connection->wait_to_send(in(60s)));
}

TEST_F(FullConnection, AClientThatLeavesEndsTheWaitAtOnce) {
  ::shutdown(client, SHUT_WR);
  const TimePoint deadline = in(60s);
  EXPECT_FALSE(connection->wait_to_send(deadline));
  EXPECT_LT(std::chrono::steady_clock::now(), deadline);
}

// On machines with cores enough it polls for most of these.
TEST_F(FullConnection, RequestsThatComeSteadilyAreAllSeenAndNoneIsMadeUp) {
  for (int i = 0; i < 30; ++i) {
    auto sends = std::async(std::launch::async, [this] {
      std::this_thread::sleep_for(2ms);
      return ::send(client, "x", 1, 0);
    });
    ASSERT_TRUE(connection->wait_for_request(in(60s)));
    char byte = 0;
    EXPECT_EQ(connection->receive(&byte, 1), 1);
    EXPECT_EQ(sends.get(), 1);
  }
  EXPECT_FALSE(connection->wait_for_request(in(10ms))) << "the next one does not come";
  ::shutdown(client, SHUT_WR);
  const TimePoint deadline = in(60s);
  EXPECT_TRUE(connection->wait_for_request(deadline)) << "its end is told";
  EXPECT_LT(std::chrono::steady_clock::now(), deadline);
}

}  // namespace
}  // namespace mesh::net
