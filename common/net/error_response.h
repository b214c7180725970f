#pragma once

#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/net/message.h"

namespace mesh::net {

/// Pins the HTTP status of an error that no status code names, such as 426.
Status with_http_status(Status status, int http_status);
/// When the caller shall try again, for Retry-After: whole seconds, rounded up.
Status with_retry_after(Status status, Duration wait);

/// 400 invalid argument or out of range, 401 unauthenticated, 403 permission denied, 404 not found, 409
/// already exists, aborted or failed precondition, 429 resource exhausted, 499 cancelled, 501 unimplemented,
/// 503 unavailable, 504 deadline exceeded, else 500.
int http_status_of(const Status& status);

/// {"error":{"message","type","param","code"}}, all four keys, as OpenAI's API has it; param and code come
/// from common/json/error_fields.h, or are null.
std::string error_body(const Status& status);

/// Both, with Retry-After on 429 and 503 (1 when the status does not say). Internal errors keep their
/// message: it never holds content of prompts.
Response error_response(const Status& status);

/// The other way round, for callers: OK for 2xx, else the code that http_status names with the body's
/// message.
Status status_of_reply(int http_status, std::string_view body);

}  // namespace mesh::net
