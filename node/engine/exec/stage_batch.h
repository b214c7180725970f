#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "node/engine/device/stage_forward.h"
#include "node/engine/weights/parts.h"

namespace mesh::engine {

StageShape stage_shape(const DecoderSpec& spec);

/// The layers of `range` for a device's own forward; nothing for a model that is not pre-norm with RMS norms,
/// one rotation and a gated SiLU MLP. `shard` must hold the range and outlive the model's use.
std::optional<StageModel> stage_model(const LoadedShard& shard, const LayerRange& range);

/// stage_model() of the ranges that steps ran last. To follow a model's pointers through cold memory takes as
/// long as a launch, and a GPU waits meanwhile.
class StageModels {
 public:
  /// Nothing when `stage` does not take it either.
  std::optional<StageModel> find(const StageForward& stage, const std::shared_ptr<const LoadedShard>& shard,
                                 const LayerRange& range);

 private:
  struct Entry {
    std::weak_ptr<const LoadedShard> shard;
    LayerRange range;
    std::optional<StageModel> model;  ///< without owner, who would keep weights alive
  };
  std::vector<Entry> entries_;  ///< the last used at the end
};

}  // namespace mesh::engine
