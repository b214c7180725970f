#include "common/net/router.h"

#include <gtest/gtest.h>

#include "common/net/error_response.h"

namespace mesh::net {
namespace {

Response nothing(Request&) {
  return {};
}

Router example() {
  return *Router::make({{"GET", "/", Access::kAnyone, nothing},
                        {"GET", "/v1/models", Access::kApiKey, nothing},
                        {"GET", "/v1/models/{name}", Access::kApiKey, nothing},
                        {"POST", "/v1/models/{name}", Access::kAdmin, nothing},
                        {"GET", "/files/{path...}", Access::kNode, nothing}});
}

std::string found(std::string_view method, std::string_view path) {
  const Router router = example();
  const auto match = router.find(method, path);
  if (!match.ok()) return std::to_string(http_status_of(match.status()));
  std::string text = match->route->pattern;
  for (const auto& [name, value] : match->params) text += " " + name + "=" + value;
  return text;
}

TEST(Router, FindsByMethodAndWholePath) {
  EXPECT_EQ(found("GET", "/"), "/");
  EXPECT_EQ(found("GET", "/v1/models"), "/v1/models");
  EXPECT_EQ(found("HEAD", "/v1/models"), "/v1/models");
  EXPECT_EQ(found("GET", "/v1/models/a%2Fb"), "/v1/models/{name} name=a/b");
  EXPECT_EQ(found("GET", "/files/a/b%20c/d"), "/files/{path...} path=a/b c/d");
}

TEST(Router, RefusesAllElse) {
  for (const char* path : {"", "v1/models", "/v1", "/v1/models/", "/v1/models/a/b", "//v1/models",
                           "/V1/models", "/files", "/files/", "/v1/models/%zz", "/v1/../v1/models"}) {
    EXPECT_EQ(found("GET", path), "404") << path;
  }
  EXPECT_EQ(found("DELETE", "/v1/models"), "405");
  EXPECT_EQ(found("get", "/"), "405");
}

TEST(Router, RefusesMalformedPatterns) {
  for (const char* pattern : {"", "v1", "/{", "/{}", "/{a...}/b", "/a{b}", "/a%20b"}) {
    EXPECT_FALSE(Router::make({{"GET", pattern, Access::kAnyone, nothing}}).ok()) << pattern;
  }
  EXPECT_FALSE(Router::make({{"GET", "/", Access::kAnyone, nullptr}}).ok());
}

}  // namespace
}  // namespace mesh::net
