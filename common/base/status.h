#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace mesh {

using absl::Status;
using absl::StatusCode;
using absl::StatusOr;

/// Builds a status with a formatted message: error(StatusCode::kNotFound, "no model {}", name).
template <class... Args>
Status error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  return Status(code, text);
}

/// The message as std::string_view (absl's own type differs on old releases).
inline std::string_view message_of(const Status& status) {
  return {status.message().data(), status.message().size()};
}

/// The same status with "context: " before its message.
inline Status with_context(const Status& status, std::string_view context) {
  if (status.ok()) return status;
  return error(status.code(), "{}: {}", context, message_of(status));
}

}  // namespace mesh

#define MESH_STATUS_JOIN_(a, b) a##b
#define MESH_STATUS_JOIN(a, b) MESH_STATUS_JOIN_(a, b)

/// Returns from the function when `expression` is not OK.
#define MESH_RETURN_IF_ERROR(expression)                                      \
  do {                                                                        \
    if (::absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

/// Declares or assigns `target` from a StatusOr, or returns its status.
#define MESH_ASSIGN_OR_RETURN(target, expression) \
  MESH_ASSIGN_OR_RETURN_(MESH_STATUS_JOIN(result_, __LINE__), target, expression)
#define MESH_ASSIGN_OR_RETURN_(result, target, expression) \
  auto result = (expression);                              \
  if (!result.ok()) return result.status();                \
  target = *std::move(result)
