#pragma once

#include "common/base/status.h"

namespace mesh {

/// A copy that shares no memory with `status`, for values that cross threads: packaged absl counts its
/// references where the thread sanitizer cannot see it.
inline Status detached(const Status& status) {
  if (status.ok()) return status;
  Status copy(status.code(), status.message());
  status.ForEachPayload([&](auto type, const auto& payload) { copy.SetPayload(type, payload); });
  return copy;
}

}  // namespace mesh
