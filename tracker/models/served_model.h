#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/hub/checkpoint.h"
#include "common/hub/manifest.h"
#include "common/wire/control.h"
#include "node/engine/models/model_profile.h"
#include "tracker/gateway/backend.h"
#include "tracker/plan/profile.h"

namespace mesh::tracker {

/// One model that the tracker offers, in every form that its parts need. Immutable.
struct ServedModel {
  ModelIdentity identity;
  std::string compute_type;
  engine::Quantization quantization = engine::Quantization::kNone;
  std::shared_ptr<hub::Checkpoint> checkpoint;
  hub::Manifest manifest;
  std::string manifest_text;  ///< as served to nodes
  engine::ModelProfile profile;
  ModelProfile plan;
  gateway::Model client;

  wire::CatalogueEntry catalogue_entry() const;
};

struct ServeOptions {
  std::string compute_type = "bfloat16";  ///< or "float32"
  /// What models are quantised to, unless they are already.
  engine::Quantization quantization = engine::Quantization::kNone;
  std::filesystem::path manifest_cache;       ///< hashes of files are kept here
  std::function<void(std::string_view)> say;  ///< progress lines; may be empty
  std::function<bool()> go_on;                ///< asked while files are hashed; may be empty
};

/// Opens, hashes and reads PATH_OR_ID[@REVISION]. Errors name the model and what is wrong with it; kCancelled
/// when `go_on` says no.
StatusOr<ServedModel> open_served_model(const std::string& spec, const ServeOptions& options);

/// Sizes for the planner, from the profile. `compute_type` says how wide the KV cache is.
ModelProfile plan_profile_of(const engine::ModelProfile& profile, const ModelIdentity& identity,
                             const std::string& name, const std::string& compute_type,
                             engine::Quantization quantization);

/// What clients call the model: an id as it is, a folder by its last name.
std::string client_name(const std::string& spec);

}  // namespace mesh::tracker
