#pragma once

#include <memory>
#include <vector>

#include "common/net/server.h"
#include "tracker/models/served_model.h"
#include "tracker/runtime/membership.h"

namespace mesh::tracker {

/// GET /mesh/v1/models/{identity}/manifest and …/files/{name} (with Range): the tracker's models for nodes
/// that have joined, and only the files of their manifests.
std::vector<net::Route> model_routes(std::shared_ptr<const std::vector<ServedModel>> models,
                                     const Membership& membership);

}  // namespace mesh::tracker
