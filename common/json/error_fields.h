#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace mesh::json {

/// Machine-readable parts of an error as clients see it, kept with the status: the request's field that is
/// wrong, and a code such as "context_length_exceeded". error_response.h of common/net writes them out.
Status with_param(Status status, std::string_view param);
Status with_code(Status status, std::string_view code);
std::optional<std::string> param_of(const Status& status);
std::optional<std::string> code_of(const Status& status);

}  // namespace mesh::json
