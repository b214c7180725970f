#include "common/net/local_caller.h"

#include <gtest/gtest.h>

namespace mesh::net {
namespace {

bool is_local(std::string ip, Headers headers) {
  Request request;
  request.remote_ip = std::move(ip);
  request.headers = std::move(headers);
  return is_local_caller(request);
}

TEST(LocalCaller, IsAProgramOfThisMachine) {
  EXPECT_TRUE(is_local("127.0.0.1", {}));
  EXPECT_TRUE(is_local("::1", {{"Host", "[::1]:8080"}}));
  EXPECT_TRUE(is_local("127.0.0.1", {{"Host", "127.0.0.1:8080"}}));
  EXPECT_TRUE(is_local("127.0.0.1", {{"Host", "localhost:8080"}, {"Origin", "http://localhost:3000"}}));
  EXPECT_TRUE(is_local("127.0.0.1", {{"Host", "localhost"}, {"Origin", "http://127.0.0.1:8080"}}));
  EXPECT_FALSE(is_local("10.0.0.1", {}));
  EXPECT_FALSE(is_local("", {}));
}

TEST(LocalCaller, IsNobodyWhomAProxyPassedOn) {
  for (const char* header : {"Forwarded", "x-forwarded-for", "Via"})
    EXPECT_FALSE(is_local("127.0.0.1", {{"Host", "127.0.0.1"}, {header, "203.0.113.9"}})) << header;
}

TEST(LocalCaller, IsNoWebPageOfElsewhereInABrowserHere) {
  for (const char* origin :
       {"https://evil.example", "http://10.0.0.1:8080", "null", "http://localhost.evil.example"})
    EXPECT_FALSE(is_local("127.0.0.1", {{"Host", "127.0.0.1:8080"}, {"Origin", origin}})) << origin;
  for (const char* host :
       {"rebound.evil.example", "rebound.evil.example:8080", "127.0.0.1.evil.example:80", "a b"})
    EXPECT_FALSE(is_local("127.0.0.1", {{"Host", host}})) << host;
}

}  // namespace
}  // namespace mesh::net
