#include <gmock/gmock.h>
#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "common/net/limits.h"
#include "common/net/test_server.h"
#include "common/net/test_socket.h"

namespace mesh::net {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class LimitsTest : public ServerTest {
 protected:
  void start_echo() {
    route("GET", "/health", [](Request&) { return Response::text("hello"); });
    route("POST", "/echo", [this](Request& request) {
      ++handled_;
      return Response::binary(std::move(request.body));
    });
    routes_.back().max_body = 1000;
    start();
  }
  /// The whole answer to `bytes`, when the server closes afterwards.
  std::string answer_to(std::string_view bytes) {
    TestSocket socket(server_->port());
    socket.send(bytes);
    return socket.read_all();
  }
  std::string with_headers(int count, std::size_t value_bytes) {
    std::string request = "GET /health HTTP/1.1\r\nConnection: close\r\n";
    for (int i = 1; i < count; ++i)
      request += "X-" + std::to_string(i) + ": " + std::string(value_bytes, 'v') + "\r\n";
    return request + "\r\n";
  }
  std::atomic<int> handled_ = 0;
};

TEST_F(LimitsTest, BodiesOverTheRoutesLimitAre413HoweverTheyCome) {
  start_echo();
  EXPECT_EQ(client()->post("/echo", std::string(1000, 'x'), "text/plain")->status, 200);
  const auto reply = client()->post("/echo", std::string(1001, 'x'), "text/plain");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status, 413);
  EXPECT_THAT(reply->body, HasSubstr("1000 bytes allowed"));
  const std::string chunk = "1f4\r\n" + std::string(500, 'x') + "\r\n";
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_THAT(answer_to(head + chunk + chunk + "0\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer_to(head + chunk + chunk + "1\r\nx\r\n0\r\n\r\n"), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(answer_to(head + "ffffffffffffffff\r\n"),
              ::testing::AnyOf(StartsWith("HTTP/1.1 413"), StartsWith("HTTP/1.1 400")));
  EXPECT_EQ(handled_, 2);
}

TEST_F(LimitsTest, ALargeRefusedBodyStillGetsItsAnswer) {
  start_echo();
  const auto reply = client()->post("/echo", std::string(std::size_t{4} << 20, 'x'), "text/plain");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status, 413);
}

TEST_F(LimitsTest, HeadersAreLimitedInNumberLengthAndSum) {
  start_echo();
  const int most = static_cast<int>(limits::kMaxHeaderCount);
  EXPECT_THAT(answer_to(with_headers(most, 10)), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer_to(with_headers(most + 1, 10)), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(answer_to(with_headers(2, limits::kMaxHeaderLineBytes - 10)), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer_to(with_headers(2, limits::kMaxHeaderLineBytes)), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(answer_to(with_headers(10, limits::kMaxHeadBytes / 8)), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(answer_to("GET /" + std::string(limits::kMaxTargetBytes, 'a') + " HTTP/1.1\r\n\r\n"),
              StartsWith("HTTP/1.1 414"));
}

TEST_F(LimitsTest, AHeadWithoutEndIsCutOff) {
  start_echo();
  EXPECT_THAT(answer_to("GET /health HTTP/1.1\r\nX: " + std::string(limits::kMaxHeadBytes + 20'000, 'x')),
              StartsWith("HTTP/1.1 431"));
}

TEST_F(LimitsTest, RequestsThatTwoServersCouldReadDifferentlyAreRefused) {
  start_echo();
  const std::string post = "POST /echo HTTP/1.1\r\nHost: x\r\n";
  EXPECT_THAT(answer_to(post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
              StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answer_to(post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
              StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answer_to(post + "Content-Length: -1\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answer_to(post + "Transfer-Encoding: gzip\r\n\r\n"), StartsWith("HTTP/1.1 501"));
  EXPECT_THAT(answer_to("GET /health HTTP/1.1\r\nContent-Length: 1\r\n\r\na"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answer_to("GET /health HTTP/3.0\r\nConnection: close\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answer_to("garbage\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answer_to("GET /%00 HTTP/1.1\r\nConnection: close\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_EQ(handled_, 0);
  EXPECT_EQ(client()->get("/health")->status, 200);
}

TEST_F(LimitsTest, SlowHeadersAndIdleConnectionsAreClosed) {
  options_.head_deadline = 1s;  // longer than a busy machine keeps this test waiting between two calls
  options_.idle_timeout = 1s;
  start_echo();
  TestSocket slow(server_->port());
  slow.send("GET /health HT");
  TestSocket idle(server_->port());
  idle.send("GET /health HTTP/1.1\r\n\r\n");
  TestSocket silent(server_->port());
  EXPECT_THAT(idle.read_until("hello"), HasSubstr("hello"));
  EXPECT_THAT(slow.read_all(), StartsWith("HTTP/1.1 408"));
  EXPECT_TRUE(silent.closed_within());
  EXPECT_TRUE(idle.closed_within());
}

TEST_F(LimitsTest, ASlowBodyIs408) {
  options_.body_deadline = 300ms;
  start_echo();
  TestSocket slow(server_->port());
  slow.send("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_THAT(slow.read_all(), StartsWith("HTTP/1.1 408"));
  TestSocket cut(server_->port());
  cut.send("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  cut.close();
  EXPECT_EQ(client()->get("/health")->status, 200);
  EXPECT_EQ(handled_, 0);
}

TEST_F(LimitsTest, ABodyThatRestsIs408HoweverFastItsBeginningCame) {
  options_.body_rest = 300ms;
  options_.body_deadline = 1h;
  start_echo();
  TestSocket resting(server_->port());
  resting.send("POST /echo HTTP/1.1\r\nContent-Length: 1000\r\n\r\n" + std::string(900, 'x'));
  EXPECT_THAT(resting.read_all(), StartsWith("HTTP/1.1 408"));
  EXPECT_EQ(handled_, 0);
}

TEST_F(LimitsTest, BodiesUnderWayShareTheirMemoryAndSmallOnesNeedNone) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  options_.bodies_bytes = 2 * kMiB;
  TestEvent& came = event();
  TestEvent& go_on = event();
  route("POST", "/hold", [&](Request& request) {
    came.set();
    go_on.wait();
    return Response::text(std::to_string(request.body.size()));
  });
  routes_.back().max_body = 8 * kMiB;
  route("POST", "/size",
        [](Request& request) { return Response::text(std::to_string(request.body.size())); });
  routes_.back().max_body = 8 * kMiB;
  start();
  std::thread first([&] {
    const auto held = client()->post("/hold", std::string(3 * kMiB, 'x'), "text/plain");
    EXPECT_TRUE(held.ok() && held->status == 200) << held.status();
  });
  came.wait();
  const auto refused = client()->post("/size", std::string(2 * kMiB, 'x'), "text/plain");
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_EQ(refused->status, 503);
  EXPECT_THAT(refused->body, HasSubstr("2 MiB that there are for them"));
  EXPECT_EQ(client()->post("/size", std::string(kMiB, 'x'), "text/plain")->status, 200);
  go_on.set();
  first.join();
  int status = 503;  // its memory is given back after its answer
  while (status == 503) status = client()->post("/size", std::string(3 * kMiB, 'x'), "text/plain")->status;
  EXPECT_EQ(status, 200);
}

TEST_F(LimitsTest, TheOldestIdleConnectionMakesRoomForANewOne) {
  options_.max_connections = 4;
  start_echo();
  TestSocket first(server_->port());
  first.send("GET /health HTTP/1.1\r\n\r\n");
  EXPECT_THAT(first.read_until("hello"), HasSubstr("hello"));
  while (server_->active_requests() > 0) std::this_thread::yield();  // answered, and parked before the others
  std::vector<std::unique_ptr<TestSocket>> others;
  for (int i = 0; i < 4; ++i) {
    others.push_back(std::make_unique<TestSocket>(server_->port()));
    others.back()->send("GET /health HTTP/1.1\r\n\r\n");
    EXPECT_THAT(others.back()->read_until("hello"), HasSubstr("hello")) << i;
  }
  EXPECT_TRUE(first.closed_within());
  EXPECT_LE(server_->open_connections(), 4u);
}

/// Nothing more can be opened by this process while it lives.
class NoFilesLeft {
 public:
  NoFilesLeft() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int next = ::dup(0);
    ::close(next);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(next);
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoFilesLeft() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};
double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

TEST_F(LimitsTest, WithoutAFreeDescriptorItWaitsQuietlyAndThenAnswers) {
  start_echo();
  TestSocket socket(server_->port(), TestSocket::Unconnected());
  {
    const NoFilesLeft none;
    socket.connect();
    const double before = cpu_seconds();
    std::this_thread::sleep_for(500ms);  // the time in which it might spin
    EXPECT_LT(cpu_seconds() - before, 0.25);
  }
  socket.send("GET /health HTTP/1.1\r\n\r\n");
  EXPECT_THAT(socket.read_until("hello"), HasSubstr("hello"));
}

TEST_F(LimitsTest, ConnectionsAreAShareOfWhatMayBeOpen) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 4 * 16;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  start_echo();
  ::setrlimit(RLIMIT_NOFILE, &before);
  std::vector<std::unique_ptr<TestSocket>> sockets;
  for (int i = 0; i < 20; ++i) {
    sockets.push_back(std::make_unique<TestSocket>(server_->port()));
    sockets.back()->send("GET /health HTTP/1.1\r\n\r\n");
    EXPECT_THAT(sockets.back()->read_until("hello"), HasSubstr("hello")) << i;
    while (server_->active_requests() > 0) std::this_thread::yield();
  }
  EXPECT_LE(server_->open_connections(), 16u);
}

TEST_F(LimitsTest, BacklogAndHeaderSizesAreWhatTheDesignSays) {
  EXPECT_EQ(limits::kListenBacklog, 1024);
  EXPECT_EQ(limits::kMaxHeaderLineBytes, 8192u);
  EXPECT_EQ(limits::kWriteTimeout, 30s);
}

}  // namespace
}  // namespace mesh::net
