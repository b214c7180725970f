#pragma once

#include <filesystem>
#include <vector>

#include "common/hub/manifest.h"

namespace mesh::hub {

/// Files under `roots` that may be `file`: same size, and in a HuggingFace cache a blob named by the hash,
/// else the same name in a root or a folder directly in it. Nothing is proven: the caller checks each piece's
/// hash.
std::vector<std::filesystem::path> find_local_copies(const std::vector<std::filesystem::path>& roots,
                                                     const ManifestFile& file);

}  // namespace mesh::hub
