#pragma once

#include <map>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace mesh::hub {

/// Tensor → file name, from the text of model.safetensors.index.json. kInvalidArgument for a file name with a
/// folder in it or without .safetensors.
StatusOr<std::map<std::string, std::string, std::less<>>> parse_shard_index(std::string_view json);

}  // namespace mesh::hub
