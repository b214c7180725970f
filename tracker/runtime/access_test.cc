#include "tracker/runtime/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/identity/key_pair.h"
#include "common/identity/signed_message.h"
#include "common/json/error_fields.h"

namespace mesh::tracker {
namespace {

net::Request from(std::string ip, std::string authorization = "") {
  net::Request request;
  request.remote_ip = std::move(ip);
  if (!authorization.empty()) request.headers.add("Authorization", authorization);
  return request;
}

TEST(TrackerAccess, WithoutKeysClientsNeedNone) {
  TrackerAccess access({}, "");
  net::Request request = from("127.0.0.1");
  EXPECT_TRUE(access.admit(net::Access::kApiKey, request).ok());
}

TEST(TrackerAccess, WhatOpensForThisMachineStaysShutForProxiesAndForeignPages) {
  TrackerAccess access({}, "admin");
  for (const auto& [header, value] :
       {std::pair{"X-Forwarded-For", "203.0.113.9"}, {"Origin", "https://evil.example"}}) {
    net::Request request = from("127.0.0.1");
    request.headers.add(header, value);
    EXPECT_EQ(access.admit(net::Access::kApiKey, request).code(), StatusCode::kPermissionDenied) << header;
    EXPECT_EQ(access.admit(net::Access::kAdmin, request).code(), StatusCode::kUnauthenticated) << header;
    request.headers.add("Authorization", "Bearer admin");
    EXPECT_TRUE(access.admit(net::Access::kAdmin, request).ok()) << header;
  }
  TrackerAccess with_key({"api"}, "");
  net::Request passed_on = from("127.0.0.1", "Bearer api");
  passed_on.headers.add("X-Forwarded-For", "203.0.113.9");
  EXPECT_TRUE(with_key.admit(net::Access::kApiKey, passed_on).ok());
}

TEST(TrackerAccess, AWrongOrMissingApiKeyIsInvalidApiKey) {
  TrackerAccess access({"right", "other"}, "");
  for (const char* given : {"", "Bearer wrong", "Bearer ", "right", "bearer right", "Bearer right2"}) {
    net::Request request = from("127.0.0.1", given);
    const Status status = access.admit(net::Access::kApiKey, request);
    EXPECT_EQ(status.code(), StatusCode::kUnauthenticated) << given;
    EXPECT_EQ(json::code_of(status), "invalid_api_key") << given;
  }
}

TEST(TrackerAccess, ARightApiKeyNamesItsPlaceNotItself) {
  TrackerAccess access({"right", "other"}, "");
  net::Request request = from("10.0.0.1", "Bearer other");
  ASSERT_TRUE(access.admit(net::Access::kApiKey, request).ok());
  EXPECT_EQ(request.principal, "key-2");
}

TEST(TrackerAccess, AdminIsThisMachineOrTheAdminKey) {
  TrackerAccess with_key({"api"}, "admin");
  TrackerAccess without({"api"}, "");
  net::Request local = from("127.0.0.1");
  net::Request local6 = from("::1");
  net::Request remote = from("10.0.0.1");
  net::Request remote_api = from("10.0.0.1", "Bearer api");
  net::Request remote_admin = from("10.0.0.1", "Bearer admin");
  net::Request remote_empty = from("10.0.0.1", "Bearer ");
  EXPECT_TRUE(without.admit(net::Access::kAdmin, local).ok());
  EXPECT_TRUE(with_key.admit(net::Access::kAdmin, local6).ok());
  EXPECT_FALSE(with_key.admit(net::Access::kAdmin, remote).ok());
  EXPECT_FALSE(with_key.admit(net::Access::kAdmin, remote_api).ok());
  EXPECT_TRUE(with_key.admit(net::Access::kAdmin, remote_admin).ok());
  EXPECT_FALSE(without.admit(net::Access::kAdmin, remote_empty).ok());
}

TEST(TrackerAccess, SignedMessagesNameTheirSignerAndOthersAreRefused) {
  TrackerAccess access({}, "");
  const KeyPair key = KeyPair::generate();
  net::Request request = from("10.0.0.1");
  request.path = "/mesh/v1/join";
  request.body = "{}";
  EXPECT_EQ(access.admit(net::Access::kNode, request).code(), StatusCode::kUnauthenticated);
  const MessageSignature signature = sign_message(key, request.path, request.body);
  request.headers.add(kKeyHeader, signature.key_hex);
  request.headers.add(kSignatureHeader, signature.signature_hex);
  ASSERT_TRUE(access.admit(net::Access::kNode, request).ok());
  ASSERT_TRUE(access.admit_body(net::Access::kNode, request).ok());
  EXPECT_EQ(request.principal, key.id().hex());

  net::Request other_route = request;
  other_route.path = "/mesh/v1/leave";
  EXPECT_EQ(json::code_of(access.admit_body(net::Access::kNode, other_route)), "signature");
  net::Request other_body = request;
  other_body.body = "{ }";
  EXPECT_FALSE(access.admit_body(net::Access::kNode, other_body).ok());
}

}  // namespace
}  // namespace mesh::tracker
