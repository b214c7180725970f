#pragma once

#include <atomic>

#include "common/host/host_share.h"
#include "common/hub/checkpoint.h"
#include "common/log/log.h"
#include "node/node.h"

namespace mesh {

/// Loads layers of an opened model into a node, saying what they need and how far the load is. `layer_count`
/// 0: any. Setting `cancelled` ends it with kCancelled, soon.
Status load_layers(Node& node, const std::shared_ptr<hub::Checkpoint>& checkpoint,
                   const ModelIdentity& identity, const LayerRange& layers, std::uint32_t layer_count,
                   engine::Quantization quantization, const log::Logger& log, HostShare& share,
                   const std::atomic<bool>& cancelled);

}  // namespace mesh
