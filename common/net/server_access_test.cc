#include <gmock/gmock.h>

#include <atomic>

#include "common/net/test_server.h"
#include "common/net/test_socket.h"

namespace mesh::net {
namespace {

using ::testing::HasSubstr;

/// Admits those who present the word; nodes must present it in the body too.
class WordPolicy final : public AccessPolicy {
 public:
  Status admit(Access access, Request& request) override {
    EXPECT_TRUE(request.body.empty());
    if (access == Access::kNode) return absl::OkStatus();
    if (request.headers.get("X-Word") != "open") return error(StatusCode::kUnauthenticated, "say the word");
    request.principal = "tester";
    return absl::OkStatus();
  }
  Status admit_body(Access access, Request& request) override {
    if (access != Access::kNode) return absl::OkStatus();
    if (request.body != "signed") return error(StatusCode::kUnauthenticated, "body is not signed");
    request.principal = "node";
    return absl::OkStatus();
  }
};

class AccessTest : public ServerTest {
 protected:
  void start_with(std::shared_ptr<AccessPolicy> policy) {
    const Handler handler = [this](Request& request) {
      ++handled_;
      return Response::text(request.principal);
    };
    route("GET", "/anyone", handler);
    route("POST", "/key", handler, Access::kApiKey);
    route("POST", "/node", handler, Access::kNode);
    route("GET", "/admin", handler, Access::kAdmin);
    start(std::move(policy));
  }
  std::atomic<int> handled_ = 0;
};

TEST_F(AccessTest, WithoutAPolicyOnlyRoutesForAnyoneAreOpen) {
  start_with(nullptr);
  EXPECT_EQ(client()->get("/anyone")->status, 200);
  EXPECT_EQ(client()->post("/key", "", "text/plain")->status, 403);
  EXPECT_EQ(client()->post("/node", "signed", "text/plain")->status, 403);
  EXPECT_EQ(client()->get("/admin")->status, 403);
  EXPECT_EQ(handled_, 1);
}

TEST_F(AccessTest, PolicyDecidesAndNamesThePrincipal) {
  start_with(std::make_shared<WordPolicy>());
  CallOptions options;
  EXPECT_EQ(client()->post("/key", "", "text/plain", options)->status, 401);
  options.headers.add("X-Word", "open");
  const auto reply = client()->post("/key", "x", "text/plain", options);
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->body, "tester");
}

TEST_F(AccessTest, BodiesOfNodesAreCheckedBeforeTheHandlerRuns) {
  start_with(std::make_shared<WordPolicy>());
  const auto refused = client()->post("/node", "unsigned", "text/plain");
  EXPECT_EQ(refused->status, 401);
  EXPECT_THAT(refused->body, HasSubstr("authentication_error"));
  EXPECT_EQ(handled_, 0);
  EXPECT_EQ(client()->post("/node", "signed", "text/plain")->body, "node");
}

TEST_F(AccessTest, AStrangersBodyIsNotReadBeforeTheAnswer) {
  start_with(std::make_shared<WordPolicy>());
  TestSocket socket(server_->port());
  socket.send("POST /key HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_THAT(socket.read_all(), HasSubstr("HTTP/1.1 401"));
}

}  // namespace
}  // namespace mesh::net
