#include "common/net/server.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "common/net/test_server.h"
#include "common/net/test_socket.h"

namespace mesh::net {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

Response echo(Request& request) {
  return Response::binary(std::move(request.body));
}
Response hello(Request&) {
  return Response::text("hello");
}

TEST_F(ServerTest, EchoesABinaryBodyOverOneKeptConnection) {
  route("POST", "/echo", echo);
  routes_.back().max_body = std::size_t{32} << 20;
  start();
  const auto caller = client();
  std::string body(std::size_t{9} << 20, '\0');
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>(i * 2654435761u >> 24);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{16384}, body.size()}) {
    const auto reply =
        caller->post("/echo", std::string_view(body).substr(0, size), "application/octet-stream");
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->status, 200);
    EXPECT_TRUE(reply->body == std::string_view(body).substr(0, size));
  }
  EXPECT_EQ(server_->open_connections(), 1u);
}

TEST_F(ServerTest, HandsOverPathQueryParamsAndHeaders) {
  route("GET", "/v1/models/{name}/files/{file...}", [](Request& request) {
    return Response::text(request.params["name"] + "|" + request.params["file"] + "|" + request.query["q"] +
                          "|" + std::string(request.headers.get("x-test")) + "|" + request.path);
  });
  start();
  CallOptions options;
  options.headers.add("X-Test", "yes");
  const auto reply = client()->get("/v1/models/a%2Fb/files/x/y?q=1+2%26&z", options);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->body, "a/b|x/y|1 2&|yes|/v1/models/a/b/files/x/y");
}

TEST_F(ServerTest, RefusesUnknownPathsAndMethodsWithAJsonError) {
  route("GET", "/health", hello);
  start();
  const auto caller = client();
  const auto unknown = caller->get("/nothing");
  EXPECT_EQ(unknown->status, 404);
  EXPECT_THAT(unknown->body, HasSubstr(R"("type":"not_found_error","param":null,"code":null)"));
  EXPECT_EQ(caller->post("/health", "{}", "application/json")->status, 405);
  EXPECT_EQ(caller->get("/health")->body, "hello") << "the server goes on";
}

TEST_F(ServerTest, RequestIdGoesThroughOrIsMade) {
  route("GET", "/id", [](Request& request) { return Response::text(request.request_id); });
  start();
  CallOptions options;
  options.headers.add("X-Request-Id", "abc-1.2_3");
  const auto kept = client()->get("/id", options);
  EXPECT_EQ(kept->body, "abc-1.2_3");
  EXPECT_EQ(kept->headers.get("x-request-id"), "abc-1.2_3");
  CallOptions hostile;
  hostile.headers.add("X-Request-Id", "a b\"<script>");
  EXPECT_THAT(client()->get("/id", hostile)->body, MatchesRegex("req-[0-9a-f]+"));
}

TEST_F(ServerTest, AddressOfTheCallerIsTheSocketsWhateverHeadersSay) {
  route("GET", "/who", [](Request& request) {
    return Response::text(request.remote_ip + " " + std::string(request.headers.get("REMOTE_ADDR")));
  });
  start();
  CallOptions options;
  options.headers.add("REMOTE_ADDR", "6.6.6.6");
  options.headers.add("X-Forwarded-For", "6.6.6.6");
  EXPECT_EQ(client()->get("/who", options)->body, "127.0.0.1 ");
}

TEST_F(ServerTest, AThrowingHandlerIsA500AndTheNextRequestIsServed) {
  route("GET", "/throw", [](Request&) -> Response { throw std::runtime_error("broken"); });
  route("GET", "/health", hello);
  start();
  const auto caller = client();
  EXPECT_EQ(caller->get("/throw")->status, 500);
  EXPECT_EQ(caller->get("/health")->status, 200);
}

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInOrder) {
  route("GET", "/n/{n}", [](Request& request) { return Response::text("<" + request.params["n"] + ">"); });
  start();
  TestSocket socket(server_->port());
  std::string requests;
  for (int i = 0; i < 20; ++i) requests += "GET /n/" + std::to_string(i) + " HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_TRUE(socket.send(requests));
  const std::string answers = socket.read_until("<19>");
  std::size_t at = 0;
  for (int i = 0; i < 20; ++i) {
    at = answers.find("<" + std::to_string(i) + ">", at);
    ASSERT_NE(at, std::string::npos) << i;
  }
}

TEST_F(ServerTest, HeadAnswersLikeGetWithoutABody) {
  route("GET", "/health", hello);
  start();
  TestSocket socket(server_->port());
  socket.send("HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string answer = socket.read_all();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 5"));
  EXPECT_THAT(answer, Not(HasSubstr("hello")));
}

TEST_F(ServerTest, ExpectContinueIsAnsweredAfterAdmission) {
  route("POST", "/echo", echo);
  route("POST", "/secret", echo, Access::kAdmin);
  start();
  TestSocket allowed(server_->port());
  allowed.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_THAT(allowed.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 100"));
  allowed.send("ok");
  EXPECT_THAT(allowed.read_until("\r\n\r\nok"), HasSubstr("200 OK"));
  TestSocket refused(server_->port());
  refused.send("POST /secret HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_THAT(refused.read_all(), StartsWith("HTTP/1.1 403"));
}

TEST_F(ServerTest, MultipartAndFormBodiesStayRaw) {
  route("POST", "/echo", echo);
  start();
  const auto caller = client();
  EXPECT_EQ(caller->post("/echo", "a=b&c", "application/x-www-form-urlencoded")->body, "a=b&c");
  EXPECT_EQ(caller->post("/echo", "--x--", "multipart/form-data; boundary=x")->body, "--x--");
}

TEST_F(ServerTest, ObserverSeesTheRouteAndStatusOfEachRequest) {
  std::mutex mutex;
  std::vector<std::string> seen;
  options_.observer = [&](const RequestRecord& record) {
    const std::lock_guard lock(mutex);
    seen.push_back(record.method + " " + record.route + " " + std::to_string(record.status));
  };
  route("GET", "/n/{n}", hello);
  start();
  const auto caller = client();
  ASSERT_TRUE(caller->get("/n/1").ok());
  ASSERT_TRUE(caller->get("/x").ok());
  server_->stop(std::chrono::seconds(1));
  EXPECT_THAT(seen, ::testing::ElementsAre("GET /n/{n} 200", "GET  404"));
}

TEST_F(ServerTest, StartSaysWhyItCannotListen) {
  route("GET", "/health", hello);
  start();
  ServerOptions taken;
  taken.listen = server_->address();
  const auto second = Server::start(taken, {}, nullptr);
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(message_of(second.status())), HasSubstr("another program uses it"));
  taken.listen = "no-port";
  EXPECT_EQ(Server::start(taken, {}, nullptr).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ServerTest, StopLetsRunningRequestsFinishWithinTheGrace) {
  TestEvent& entered = event();
  TestEvent& leave = event();
  route("GET", "/slow", [&](Request&) {
    entered.set();
    leave.wait();
    return Response::text("done");
  });
  start();
  std::string answer;
  std::thread caller([&, c = client()] {
    const auto reply = c->get("/slow");
    if (reply.ok()) answer = reply->body;
  });
  ASSERT_TRUE(entered.wait());
  std::thread stopper([&] { server_->stop(std::chrono::seconds(5)); });
  leave.set();
  stopper.join();
  caller.join();
  EXPECT_EQ(answer, "done");
  EXPECT_FALSE(TestSocket(server_->port()).connected());
}

TEST_F(ServerTest, StopCutsOffWhatOutlastsTheGraceAndTellsTheHandler) {
  TestEvent& entered = event();
  TestEvent& gone = event();
  std::atomic<bool> told = false;
  route("GET", "/forever", [&](Request& request) {
    request.client->on_gone([&] { gone.set(); });
    entered.set();
    told = gone.wait();
    return Response::text("");
  });
  start();
  TestSocket socket(server_->port());
  socket.send("GET /forever HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(entered.wait());
  server_->stop(std::chrono::milliseconds(0));
  EXPECT_TRUE(told);
  EXPECT_TRUE(socket.closed_within());
}

}  // namespace
}  // namespace mesh::net
