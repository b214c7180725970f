#pragma once

#include <filesystem>

#include "common/base/status.h"
#include "common/identity/join_key.h"

namespace mesh::tracker {

/// The join key in `file`, which is made (readable by its owner alone) when it is not there.
/// kFailedPrecondition when the key there was made by a tracker with another key than `tracker`.
StatusOr<JoinKey> load_join_key(const std::filesystem::path& file, const PublicKey& tracker);

}  // namespace mesh::tracker
