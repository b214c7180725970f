#pragma once

#include <filesystem>
#include <string_view>

#include "common/base/status.h"

namespace mesh {

/// Makes the folder and locks it for this process, until it ends; the lock's descriptor. kFailedPrecondition
/// when another program of this kind ("node", "tracker") uses it.
StatusOr<int> lock_data_folder(const std::filesystem::path& folder, std::string_view program);

}  // namespace mesh
