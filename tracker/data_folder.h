#pragma once

#include <filesystem>

#include "common/base/status.h"
#include "common/identity/join_key.h"

namespace mesh::tracker {

/// Makes the folder and locks it for this process, until it ends; the lock's descriptor. kFailedPrecondition
/// when another tracker uses it.
StatusOr<int> lock_data_folder(const std::filesystem::path& folder);

/// The join key in `file`, which is made (readable by its owner alone) when it is not there.
/// kFailedPrecondition when the key there was made by a tracker with another key than `tracker`.
StatusOr<JoinKey> load_join_key(const std::filesystem::path& file, const PublicKey& tracker);

}  // namespace mesh::tracker
