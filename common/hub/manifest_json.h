#pragma once

#include "common/hub/manifest.h"
#include "common/json/view.h"

namespace mesh::hub {

/// One entry of a manifest's "files".
json::Object file_to_json(const ManifestFile& file);
/// kInvalidArgument; every count is checked against the size.
StatusOr<ManifestFile> file_from_json(const json::View& view);

}  // namespace mesh::hub
