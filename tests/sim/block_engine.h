#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "node/engine/cache/cache_table.h"
#include "node/engine/engine.h"

namespace mesh::sim {

/// An engine with the real table of caches and blocks and a model made of hashes (fake_engine.h): each
/// layer's output at a position lies in that layer's block, where the next position reads it. So a block that
/// leaks into another cache, comes back wrong from host memory or is used twice changes the text. Runs whole
/// models.
class BlockEngine final : public engine::Engine {
 public:
  static constexpr std::uint32_t kLayers = 2;
  static constexpr std::uint64_t kTokenBytes =
      std::uint64_t{kLayers} * (8 + 32) * 4;  ///< keys, padded values
  static constexpr std::uint64_t kBlockBytes = 128 * kTokenBytes;

  /// `faults`: null, or asked before each allocation.
  BlockEngine(std::uint64_t memory, std::uint64_t host, engine::AllocationFaults* faults);

  static std::shared_ptr<const engine::Shard> shard();
  /// What broke: a block in two caches at once.
  const std::vector<std::string>& violations() const { return violations_; }

  engine::Device device() const override { return engine::Device::kCpu; }
  engine::ComputeType compute() const override { return engine::ComputeType::kFloat32; }
  const engine::DeviceNote& device_note() const override { return note_; }
  StatusOr<engine::ShardNeeds> shard_needs(hub::Checkpoint&, const ModelIdentity&,
                                           const engine::ShardSpec&) const override;
  StatusOr<std::shared_ptr<const engine::Shard>> load(hub::Checkpoint&, const ModelIdentity&,
                                                      const engine::ShardSpec&,
                                                      const engine::ProgressCallback&) override;
  StatusOr<engine::CacheId> open_cache(const std::shared_ptr<const engine::Shard>&, const LayerRange& range,
                                       Position max_positions) override;
  Status trim(engine::CacheId cache, Position position) override { return caches_.trim(cache, position); }
  StatusOr<std::shared_ptr<const engine::SharedBlock>> share(engine::CacheId cache,
                                                             std::uint32_t index) override {
    return caches_.share(cache, index);
  }
  Status attach(engine::CacheId cache, std::span<const std::shared_ptr<const engine::SharedBlock>> blocks,
                Position tokens) override {
    return caches_.attach(cache, blocks, tokens);
  }
  StatusOr<std::uint64_t> spill(engine::CacheId cache) override { return caches_.spill(cache); }
  StatusOr<std::uint64_t> restore(engine::CacheId cache) override { return caches_.restore(cache); }
  void close_cache(engine::CacheId cache) override;
  StatusOr<engine::CacheState> cache_state(engine::CacheId cache) const override {
    return caches_.state(cache);
  }
  engine::MemoryUse memory() const override;
  StatusOr<std::vector<engine::SegmentResult>> step(const std::shared_ptr<const engine::Shard>&,
                                                    const LayerRange& range,
                                                    std::span<const engine::Segment> segments) override;

 private:
  engine::SegmentResult run(const engine::Segment& segment, const LayerRange& range);
  void check_owner(engine::CacheId cache, std::byte* block);

  const engine::DeviceNote note_;
  std::unique_ptr<engine::DeviceOps> ops_;
  engine::MemoryBudget budget_;
  engine::CacheTable caches_;
  std::set<engine::CacheId> open_;
  std::vector<std::string> violations_;
};

}  // namespace mesh::sim
