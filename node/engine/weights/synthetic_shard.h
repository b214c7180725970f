#pragma once

#include <memory>
#include <string_view>

#include "node/engine/weights/shard_loader.h"

namespace mesh::engine {

/// A shard of the model that config.json describes, without a checkpoint: matrices normal(0, 0.02) and biases
/// a function of `seed` and the matrix's place, norm weights one; made on the device where it can. Parts are
/// not shared with other shards. kInvalidArgument for configs and ranges as load_shard, kResourceExhausted
/// without memory.
StatusOr<std::shared_ptr<const LoadedShard>> synthetic_shard(const LoadContext& context,
                                                             std::string_view config_json,
                                                             const ModelIdentity& identity,
                                                             const ShardSpec& spec, std::uint64_t seed);

}  // namespace mesh::engine
