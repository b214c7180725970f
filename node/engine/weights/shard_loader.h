#pragma once

#include <memory>

#include "node/engine/engine.h"
#include "node/engine/weights/part_store.h"
#include "node/engine/weights/parts.h"

namespace mesh::engine {

/// What loading needs of the engine. All of it is thread-safe.
struct LoadContext {
  DeviceOps& ops;
  MemoryBudget& budget;
  PartStore& store;
  WeightFormat compute = WeightFormat::kBfloat16;
};

/// A shard's model, tensors and bytes, from headers alone.
struct ShardPlan;

/// Checks names, shapes, range. Reads no weights.
StatusOr<std::shared_ptr<ShardPlan>> plan_shard(const LoadContext& context, hub::Checkpoint& checkpoint,
                                                const ModelIdentity& identity, const ShardSpec& spec);
/// weight_bytes and loading_bytes of what is not held yet.
ShardNeeds needs_of(const ShardPlan& plan);
const DecoderSpec& decoder_of(const ShardPlan& plan);
bool is_quantised(const ShardPlan& plan);
/// Reserves, reads and packs.
StatusOr<std::shared_ptr<const LoadedShard>> load_shard(const LoadContext& context,
                                                        hub::Checkpoint& checkpoint, ShardPlan& plan,
                                                        const ProgressCallback& progress);

}  // namespace mesh::engine
