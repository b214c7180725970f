#pragma once

#include <optional>

#include "node/engine/device/stage_forward.h"
#include "node/engine/weights/parts.h"

namespace mesh::engine {

StageShape stage_shape(const DecoderSpec& spec);

/// The layers of `range` for a device's own forward; nothing for a model that is not pre-norm with RMS norms,
/// one rotation and a gated SiLU MLP. `shard` must hold the range and outlive the model's use.
std::optional<StageModel> stage_model(const LoadedShard& shard, const LayerRange& range);

}  // namespace mesh::engine
