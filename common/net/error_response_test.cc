#include "common/net/error_response.h"

#include <gtest/gtest.h>

#include "common/json/error_fields.h"

namespace mesh::net {
namespace {

TEST(ErrorResponse, HasAllFourKeysOfTheOpenAiShape) {
  const Status status =
      json::with_code(json::with_param(error(StatusCode::kInvalidArgument, "too long"), "messages"),
                      "context_length_exceeded");
  const Response response = error_response(status);
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.body,
            R"({"error":{"message":"too long","type":"invalid_request_error","param":"messages",)"
            R"("code":"context_length_exceeded"}})");
  EXPECT_EQ(error_body(error(StatusCode::kUnavailable, "no coverage")),
            R"({"error":{"message":"no coverage","type":"server_error","param":null,"code":null}})");
}

TEST(ErrorResponse, StatusCodesBecomeHttp) {
  const std::pair<StatusCode, int> cases[] = {
      {StatusCode::kInvalidArgument, 400},  {StatusCode::kUnauthenticated, 401},
      {StatusCode::kPermissionDenied, 403}, {StatusCode::kNotFound, 404},
      {StatusCode::kAlreadyExists, 409},    {StatusCode::kResourceExhausted, 429},
      {StatusCode::kInternal, 500},         {StatusCode::kUnimplemented, 501},
      {StatusCode::kUnavailable, 503},      {StatusCode::kDeadlineExceeded, 504},
      {StatusCode::kDataLoss, 500},
  };
  for (const auto& [code, http] : cases) EXPECT_EQ(http_status_of(error(code, "x")), http) << http;
  EXPECT_EQ(http_status_of(with_http_status(error(StatusCode::kFailedPrecondition, "update"), 426)), 426);
}

TEST(ErrorResponse, OverloadSaysWhenToComeBack) {
  EXPECT_EQ(error_response(error(StatusCode::kResourceExhausted, "busy")).headers.get("Retry-After"), "1");
  EXPECT_EQ(error_response(error(StatusCode::kUnavailable, "busy")).headers.get("Retry-After"), "1");
  EXPECT_EQ(error_response(error(StatusCode::kNotFound, "x")).headers.get("Retry-After"), "");
  const Status later =
      with_retry_after(error(StatusCode::kResourceExhausted, "busy"), std::chrono::milliseconds(2001));
  EXPECT_EQ(error_response(later).headers.get("Retry-After"), "3") << "whole seconds, never too early";
}

TEST(ErrorResponse, BytesThatAreNoUtf8DoNotBreakTheJson) {
  EXPECT_TRUE(json::parse(error_body(error(StatusCode::kInvalidArgument, "bad {}", "\xff\"\n"))).ok());
}

TEST(StatusOfReply, ReadsBackWhatErrorBodyWrote) {
  const Status sent = json::with_code(
      json::with_param(error(StatusCode::kNotFound, "no such model"), "model"), "model_not_found");
  const Status got = status_of_reply(404, error_body(sent));
  EXPECT_EQ(got.code(), StatusCode::kNotFound);
  EXPECT_EQ(message_of(got), "no such model");
  EXPECT_EQ(json::param_of(got), "model");
  EXPECT_EQ(json::code_of(got), "model_not_found");
}

TEST(StatusOfReply, CopesWithAnyBody) {
  EXPECT_TRUE(status_of_reply(202, "").ok());
  for (const char* body : {"", "<html>", "{\"error\":\"text\"}", "{\"error\":{\"message\":3}}", "[]"}) {
    EXPECT_EQ(status_of_reply(502, body).code(), StatusCode::kUnavailable) << body;
  }
  EXPECT_EQ(http_status_of(status_of_reply(426, "")), 426);
}

}  // namespace
}  // namespace mesh::net
