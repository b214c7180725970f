#include "common/net/client.h"

#include <gmock/gmock.h>

#include <thread>

#include "common/net/test_listener.h"
#include "common/net/test_server.h"

namespace mesh::net {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

std::unique_ptr<Client> client_of(const TestListener& listener, ClientOptions options = {}) {
  return *Client::make("http://127.0.0.1:" + std::to_string(listener.port()), std::move(options));
}

TEST(Client, RefusesBadUrlsAndPaths) {
  EXPECT_FALSE(Client::make("127.0.0.1:80").ok());
  EXPECT_FALSE(Client::make("http://127.0.0.1:80/base").ok());
  TestListener listener({});
  for (const char* path : {"", "x", "/a b", "/a\r\nX: y", "/a#b", "/\x80"}) {
    EXPECT_EQ(client_of(listener)->get(path).status().code(), StatusCode::kInvalidArgument) << path;
  }
}

TEST(Client, AddressClassIsCheckedBeforeConnecting) {
  TestListener listener({"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"});
  ClientOptions options;
  options.addresses = *AddressPolicy::parse("public");
  const auto reply = client_of(listener, options)->get("/");
  EXPECT_EQ(reply.status().code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(message_of(reply.status())), HasSubstr("loopback"));
  EXPECT_EQ(listener.accepted(), 0);
}

TEST(Client, NeverFollowsRedirects) {
  TestListener listener({"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"});
  const auto reply = client_of(listener)->get("/");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status, 302);
  EXPECT_EQ(listener.accepted(), 1);
}

TEST(Client, SaysThatNobodyListens) {
  int port;
  {
    TestListener listener({});
    port = listener.port();
  }
  const auto reply = (*Client::make("http://127.0.0.1:" + std::to_string(port)))->get("/");
  EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(message_of(reply.status())), HasSubstr("Connection refused"));
}

TEST(Client, TheWholeExchangeHasOneDeadlineHoweverTheServerDrips) {
  TestListener silent({""}, TestListener::After::kStayOpen);
  CallOptions options;
  options.timeout = 200ms;
  EXPECT_EQ(client_of(silent)->get("/", options).status().code(), StatusCode::kDeadlineExceeded);
  TestListener dripping({"HTTP/1.1 200 OK\r\nX: "}, TestListener::After::kDrip);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(client_of(dripping)->get("/", options).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 3s);
}

TEST(Client, LimitsTheAnswer) {
  TestListener listener({"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world"});
  CallOptions options;
  options.max_response = 10;
  EXPECT_EQ(client_of(listener)->get("/", options).status().code(), StatusCode::kResourceExhausted);
}

TEST(Client, HostileAnswersAreErrors) {
  for (const std::string& answer :
       {std::string("garbage\r\n\r\n"), "HTTP/1.1 200 " + std::string(200'000, 'x'),
        std::string("HTTP/1.1 200 OK\r\n"), std::string("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort"),
        std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        "HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'y') + "\r\n\r\n"}) {
    TestListener listener({answer});
    const auto reply = client_of(listener)->get("/");
    EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable) << answer.substr(0, 60);
  }
}

TEST(Client, AsksAgainWhenTheServerHadClosedTheKeptConnection) {
  const std::string ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
  TestListener listener({ok, ok, ok});
  const auto client = client_of(listener);
  EXPECT_TRUE(client->get("/").ok());
  EXPECT_TRUE(client->get("/").ok());
  CallOptions idempotent;
  idempotent.idempotent = true;
  EXPECT_TRUE(client->post("/", "x", "text/plain", idempotent).ok());
}

TEST(Client, AnotherThreadCanCancelACall) {
  TestListener silent({""}, TestListener::After::kStayOpen);
  const auto client = client_of(silent);
  std::thread canceller([&] {
    while (silent.accepted() == 0) std::this_thread::yield();
    client->cancel();
  });
  EXPECT_EQ(client->get("/").status().code(), StatusCode::kCancelled);
  canceller.join();
}

class DownloadTest : public ServerTest {
 protected:
  void SetUp() override {
    for (int i = 0; i < 100'000; ++i) file_ += static_cast<char>(i * 7 % 251);
    route("GET", "/file", [this](Request& request) {
      const auto range = parse_range(request.headers.get("Range"), file_.size());
      const ByteRange part = *range ? **range : ByteRange{0, file_.size()};
      Response response = Response::binary(file_.substr(part.begin, part.size()));
      if (*range) {
        response.status = 206;
        response.headers.add("Content-Range", content_range_header(part, file_.size()));
      }
      return response;
    });
    route("GET", "/ignores", [this](Request&) { return Response::binary(file_); });
    route("GET", "/lies", [this](Request&) {
      Response response = Response::binary(file_.substr(0, 50));
      response.status = 206;
      response.headers.add("Content-Range", "bytes 0-49/100000");
      return response;
    });
    start();
  }
  std::string file_;
};

TEST_F(DownloadTest, StreamsARangeToTheSink) {
  std::string got;
  const auto reply = client()->download("/file", ByteRange{1234, 56789}, [&](std::string_view piece) {
    got += piece;
    return true;
  });
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status, 206);
  EXPECT_TRUE(got == file_.substr(1234, 56789 - 1234));
}

TEST_F(DownloadTest, AnotherRangeOrTheWholeIsNotTakenForTheRange) {
  const BodySink sink = [](std::string_view) { return true; };
  EXPECT_EQ(client()->download("/ignores", ByteRange{10, 60}, sink).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(client()->download("/lies", ByteRange{10, 60}, sink).status().code(), StatusCode::kUnavailable);
}

TEST_F(DownloadTest, ErrorsOfTheServerAreRepliesAndTheSinkMayEndIt) {
  const auto caller = client();
  std::string got;
  const auto missing = caller->download("/nothing", {}, [&](std::string_view piece) {
    got += piece;
    return true;
  });
  ASSERT_TRUE(missing.ok()) << missing.status();
  EXPECT_EQ(missing->status, 404);
  EXPECT_EQ(missing->as_status().code(), StatusCode::kNotFound);
  EXPECT_EQ(got, "");
  EXPECT_EQ(caller->download("/file", {}, [](std::string_view) { return false; }).status().code(),
            StatusCode::kCancelled);
  EXPECT_TRUE(caller->get("/file").ok()) << "the client can be used again";
}

}  // namespace
}  // namespace mesh::net
