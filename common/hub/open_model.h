#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "common/hub/model_files.h"

namespace mesh::hub {

inline constexpr std::string_view kGgufReason =
    "GGUF keeps no per-layer hidden-state layout we can split; give the HuggingFace safetensors folder";

/// Where huggingface_hub keeps its cache: HF_HUB_CACHE, else HF_HOME/hub, else
/// XDG_CACHE_HOME/huggingface/hub, else
/// ~/.cache/huggingface/hub. Empty when none of these is set.
std::filesystem::path hf_cache_folder();

/// Opens `spec` = PATH_OR_ID[@REVISION]: an existing folder, else a HuggingFace id in `hf_cache` (revision:
/// branch, tag or commit; default main). Nothing is downloaded. The folder needs config.json and SafeTensors
/// weights (model.safetensors, else the shards of model.safetensors.index.json, else the only *.safetensors).
/// kNotFound, kInvalidArgument (a GGUF or pickle folder, a missing shard, a link that leaves the folder: with
/// reason and fix).
StatusOr<std::shared_ptr<ModelFiles>> open_model(std::string_view spec,
                                                 const std::filesystem::path& hf_cache);
/// The same for a folder; `description` is what messages call it (default: its path).
StatusOr<std::shared_ptr<ModelFiles>> open_folder(const std::filesystem::path& folder,
                                                  std::string description = "");

}  // namespace mesh::hub
