#include <gmock/gmock.h>

#include <optional>
#include <thread>

#include "common/net/test_server.h"
#include "common/net/test_socket.h"

namespace mesh::net {
namespace {

using namespace std::chrono_literals;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class StreamTest : public ServerTest {
 protected:
  void stream(std::string pattern, std::function<void(StreamWriter&)> body,
              std::optional<std::uint64_t> length = {}) {
    route("GET", std::move(pattern), [body = std::move(body), length](Request&) {
      Response response;
      response.content_type = kEventStreamType;
      response.stream = body;
      response.stream_length = length;
      return response;
    });
    routes_.back().long_lived = true;
  }
};

TEST_F(StreamTest, PiecesArriveWhenTheyAreWrittenAndTheConnectionIsKept) {
  TestEvent& first_arrived = event();
  stream("/events", [&](StreamWriter& writer) {
    EXPECT_TRUE(writer.write("data: 1\n\n"));
    EXPECT_TRUE(first_arrived.wait());
    EXPECT_TRUE(writer.write("data: 2\n\n"));
  });
  start();
  TestSocket socket(server_->port());
  socket.send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string head = socket.read_until("data: 1\n\n");
  EXPECT_THAT(head, HasSubstr("text/event-stream"));
  EXPECT_THAT(head, HasSubstr("chunked"));
  first_arrived.set();
  EXPECT_THAT(socket.read_until("\r\n0\r\n\r\n"), HasSubstr("data: 2\n\n"));
  socket.send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(socket.read_until("\r\n0\r\n\r\n"), HasSubstr("data: 2\n\n"));
}

TEST_F(StreamTest, HttpOneZeroGetsNoChunks) {
  stream("/events", [](StreamWriter& writer) { writer.write("data: 1\n\n"); });
  start();
  TestSocket socket(server_->port());
  socket.send("GET /events HTTP/1.0\r\n\r\n");
  const std::string answer = socket.read_all();
  EXPECT_THAT(answer, EndsWith("\r\n\r\ndata: 1\n\n"));
  EXPECT_THAT(answer, Not(HasSubstr("chunked")));
}

TEST_F(StreamTest, KnownLengthIsAnnouncedAndACutAnswerClosesTheConnection) {
  stream("/whole", [](StreamWriter& writer) { writer.write("12345"); }, 5);
  stream("/short", [](StreamWriter& writer) { writer.write("123"); }, 5);
  start();
  TestSocket whole(server_->port());
  whole.send("GET /whole HTTP/1.1\r\n\r\n");
  const std::string answer = whole.read_until("12345");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 5"));
  const auto cut = client()->get("/short");
  EXPECT_EQ(cut.status().code(), StatusCode::kUnavailable);
}

TEST_F(StreamTest, AHandlerThatWritesNothingLearnsWithinASecondThatItsClientLeft) {
  TestEvent& entered = event();
  TestEvent& left = event();
  stream("/silent", [&](StreamWriter& writer) {
    entered.set();
    const auto deadline = std::chrono::steady_clock::now() + 5s;
    while (!writer.client_gone() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (writer.client_gone()) left.set();
    EXPECT_FALSE(writer.write("x"));
  });
  start();
  TestSocket socket(server_->port());
  socket.send("GET /silent HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(entered.wait());
  socket.close();
  EXPECT_TRUE(left.wait(1s));
}

TEST_F(StreamTest, WithoutStreamingTheClientsLeavingIsToldAsWell) {
  TestEvent& entered = event();
  TestEvent& told = event();
  TestEvent& done = event();
  route("POST", "/wait", [&](Request& request) {
    request.client->on_gone([&] { told.set(); });
    entered.set();
    EXPECT_TRUE(told.wait());
    EXPECT_TRUE(request.client_gone());
    done.set();
    return Response::text("late");
  });
  start();
  TestSocket socket(server_->port());
  socket.send("POST /wait HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}");
  ASSERT_TRUE(entered.wait());
  const auto before = std::chrono::steady_clock::now();
  socket.close();
  ASSERT_TRUE(told.wait(1s));
  EXPECT_LT(std::chrono::steady_clock::now() - before, 1s);
  ASSERT_TRUE(done.wait());
}

TEST_F(StreamTest, AClientThatStaysIsNotTakenForGoneEvenIfItSendsMore) {
  TestEvent& entered = event();
  TestEvent& leave = event();
  route("GET", "/stay", [&](Request& request) {
    entered.set();
    EXPECT_TRUE(leave.wait());
    return Response::text(request.client_gone() ? "gone" : "here");
  });
  start();
  TestSocket socket(server_->port());
  socket.send("GET /stay HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(entered.wait());
  socket.send("GET /stay HTTP/1.1\r\n\r\n");
  leave.set();
  EXPECT_THAT(socket.read_until("here"), HasSubstr("here"));
}

TEST_F(StreamTest, AClientThatDoesNotReadIsGivenUp) {
  options_.write_timeout = 300ms;
  TestEvent& ended = event();
  stream("/flood", [&](StreamWriter& writer) {
    const std::string piece(65536, 'x');
    while (writer.write(piece)) {
    }
    ended.set();
  });
  start();
  TestSocket socket(server_->port());
  socket.send("GET /flood HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(ended.wait(10s));
}

}  // namespace
}  // namespace mesh::net
