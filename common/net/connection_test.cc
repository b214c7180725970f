#include "common/net/connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

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

}  // namespace
}  // namespace mesh::net
