#include "common/net/error_response.h"

#include <charconv>

#include "absl/strings/cord.h"
#include "common/json/error_fields.h"
#include "common/json/view.h"

namespace mesh::net {
namespace {

constexpr const char* kHttpStatus = "meshnet/http-status";
constexpr const char* kRetryAfter = "meshnet/retry-after";

struct Mapping {
  StatusCode code;
  int http_status;
};

/// The first entry of an HTTP status is the code that it means to a caller.
constexpr Mapping kMappings[] = {
    {StatusCode::kInvalidArgument, 400},   {StatusCode::kOutOfRange, 400},
    {StatusCode::kUnauthenticated, 401},   {StatusCode::kPermissionDenied, 403},
    {StatusCode::kNotFound, 404},          {StatusCode::kFailedPrecondition, 409},
    {StatusCode::kAlreadyExists, 409},     {StatusCode::kAborted, 409},
    {StatusCode::kResourceExhausted, 429}, {StatusCode::kCancelled, 499},
    {StatusCode::kInternal, 500},          {StatusCode::kUnimplemented, 501},
    {StatusCode::kUnavailable, 503},       {StatusCode::kDeadlineExceeded, 504},
};

std::string_view type_of(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

json::Value text_or_null(const std::optional<std::string>& text) {
  return text ? json::Value(boost::json::string(*text)) : json::Value(nullptr);
}

StatusCode code_of_http(int http_status) {
  for (const Mapping& mapping : kMappings) {
    if (mapping.http_status == http_status) return mapping.code;
  }
  if (http_status == 413) return StatusCode::kResourceExhausted;
  if (http_status == 408) return StatusCode::kDeadlineExceeded;
  if (http_status == 426) return StatusCode::kFailedPrecondition;
  return http_status < 500 ? StatusCode::kInvalidArgument : StatusCode::kUnavailable;
}

}  // namespace

Status with_http_status(Status status, int http_status) {
  if (!status.ok()) status.SetPayload(kHttpStatus, absl::Cord(std::to_string(http_status).c_str()));
  return status;
}

Status with_retry_after(Status status, Duration wait) {
  const auto whole = std::chrono::ceil<std::chrono::seconds>(wait).count();
  if (!status.ok()) status.SetPayload(kRetryAfter, absl::Cord(std::to_string(whole).c_str()));
  return status;
}

int http_status_of(const Status& status) {
  if (status.ok()) return 200;
  if (const auto payload = status.GetPayload(kHttpStatus)) {
    const std::string text(*payload);
    int pinned = 0;
    std::from_chars(text.data(), text.data() + text.size(), pinned);
    return pinned;
  }
  for (const Mapping& mapping : kMappings) {
    if (mapping.code == status.code()) return mapping.http_status;
  }
  return 500;
}

std::string error_body(const Status& status) {
  json::Object fields;
  fields["message"] = boost::json::string(json::as_utf8(message_of(status)));
  fields["type"] = boost::json::string(type_of(http_status_of(status)));
  fields["param"] = text_or_null(json::param_of(status));
  fields["code"] = text_or_null(json::code_of(status));
  json::Object body;
  body["error"] = std::move(fields);
  return json::serialize(body);
}

Response error_response(const Status& status) {
  Response response;
  response.status = http_status_of(status);
  response.body = error_body(status);
  if (response.status == 429 || response.status == 503) {
    const auto wait = status.GetPayload(kRetryAfter);
    response.headers.add("Retry-After", wait ? std::string(*wait) : "1");
  }
  return response;
}

Status status_of_reply(int http_status, std::string_view body) {
  if (http_status >= 200 && http_status < 300) return absl::OkStatus();
  std::string message = fmt::format("HTTP status {}", http_status);
  std::optional<std::string> param, code;
  if (const auto parsed = json::parse(body); parsed.ok()) {
    const json::View root(*parsed);
    const auto fields = root.find("error");
    if (fields.ok() && *fields) {
      if (const auto text = (*fields)->get<std::string>("message"); text.ok()) message = *text;
      if (const auto text = (*fields)->get_optional<std::string>("param"); text.ok()) param = *text;
      if (const auto text = (*fields)->get_optional<std::string>("code"); text.ok()) code = *text;
    }
  }
  Status status = with_http_status(error(code_of_http(http_status), "{}", message), http_status);
  if (param) status = json::with_param(std::move(status), *param);
  if (code) status = json::with_code(std::move(status), *code);
  return status;
}

}  // namespace mesh::net
