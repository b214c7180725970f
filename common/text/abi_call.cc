#include "common/text/abi_call.h"

namespace mesh::text {

Status to_status(std::int32_t code, const Buffer& message) {
  switch (code) {
    case MESH_TEXT_OK:
      return absl::OkStatus();
    case MESH_TEXT_INVALID_ARGUMENT:
      return error(StatusCode::kInvalidArgument, "{}", message.view());
    case MESH_TEXT_NOT_FOUND:
      return error(StatusCode::kNotFound, "{}", message.view());
    case MESH_TEXT_RESOURCE_EXHAUSTED:
      return error(StatusCode::kResourceExhausted, "{}", message.view());
    default:
      return error(StatusCode::kInternal, "{}", message.view());
  }
}

}  // namespace mesh::text
