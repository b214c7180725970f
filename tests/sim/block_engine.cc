#include "tests/sim/block_engine.h"

#include <cstring>

#include "common/base/kv_blocks.h"
#include "tests/sim/fake_engine.h"

namespace mesh::sim {
namespace {

constexpr ops::KvLayout kLayout{1, 8, ops::Element::kF32};

class WholeModel final : public engine::Shard {
 public:
  const engine::ModelProfile& profile() const override { return profile_; }
  const engine::ShardSpec& spec() const override { return spec_; }
  const ModelIdentity& identity() const override { return identity_; }
  std::uint64_t bytes() const override { return 0; }

 private:
  const engine::ModelProfile profile_;
  const engine::ShardSpec spec_{{0, BlockEngine::kLayers}, true, true, {}};
  const ModelIdentity identity_;
};

std::byte* place(const std::vector<std::byte*>& blocks, Position position) {
  return blocks[position / kKvBlockTokens] + position % kKvBlockTokens * sizeof(std::uint64_t);
}

}  // namespace

BlockEngine::BlockEngine(std::uint64_t memory, std::uint64_t host, engine::AllocationFaults* faults)
    : ops_(*engine::make_cpu_ops(1)), budget_(memory), caches_(*ops_, budget_, host, faults) {}

std::shared_ptr<const engine::Shard> BlockEngine::shard() {
  return std::make_shared<const WholeModel>();
}

StatusOr<engine::ShardNeeds> BlockEngine::shard_needs(hub::Checkpoint&, const ModelIdentity&,
                                                      const engine::ShardSpec&) const {
  return engine::ShardNeeds{};
}

StatusOr<std::shared_ptr<const engine::Shard>> BlockEngine::load(hub::Checkpoint&, const ModelIdentity&,
                                                                 const engine::ShardSpec&,
                                                                 const engine::ProgressCallback&) {
  return shard();
}

StatusOr<engine::CacheId> BlockEngine::open_cache(const std::shared_ptr<const engine::Shard>&,
                                                  const LayerRange& range, Position max_positions) {
  auto cache = caches_.open({}, range, kLayout, max_positions);
  if (cache.ok()) open_.insert(*cache);
  return cache;
}

void BlockEngine::close_cache(engine::CacheId cache) {
  open_.erase(cache);
  caches_.close(cache);
}

engine::MemoryUse BlockEngine::memory() const {
  const engine::MemoryBudget::Totals totals = budget_.totals();
  engine::MemoryUse use;
  use.budget_bytes = totals.budget;
  use.cache_bytes = totals.budget - totals.free();
  use.cache_blocks = caches_.blocks();
  use.shared_blocks = caches_.shared_blocks();
  use.caches = caches_.count();
  use.spill_budget_bytes = caches_.host().budget();
  use.spilled_bytes = caches_.host().used();
  return use;
}

/// A block that is about to be written is in no other cache.
void BlockEngine::check_owner(engine::CacheId cache, std::byte* block) {
  for (const engine::CacheId other : open_) {
    if (other == cache || caches_.state(other)->on_host) continue;
    const auto lent = caches_.lend(other, {}, caches_.state(other)->range, caches_.state(other)->next, 0);
    if (!lent.ok()) continue;
    for (const std::byte* theirs : (*lent)->blocks_of(0)) {
      if (theirs == block) violations_.push_back("a block is written by two caches");
    }
    caches_.give_back(**lent, caches_.state(other)->next);
  }
}

engine::SegmentResult BlockEngine::run(const engine::Segment& segment, const LayerRange& range) {
  engine::SegmentResult result;
  const auto cache = caches_.lend(segment.cache, {}, range, segment.start, segment.rows);
  result.status = cache.status();
  if (!result.status.ok()) return result;
  engine::SessionCache& lent = **cache;
  const Position end = segment.start + segment.rows;
  result.status = lent.make_writable(*ops_, segment.start, end, caches_.faults());
  if (!result.status.ok()) {
    caches_.give_back(lent, segment.start);
    return result;
  }
  std::vector<std::vector<std::byte*>> blocks;
  blocks.reserve(kLayers);
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) blocks.push_back(lent.blocks_of(layer));
  for (std::size_t i = segment.start / kKvBlockTokens; i < kv_blocks(end); ++i)
    check_owner(segment.cache, blocks[0][i]);
  std::uint64_t x = 0;
  for (Position position = segment.start; position < end; ++position) {
    x = FakeEngine::embedded(segment.ids[position - segment.start]);
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      std::uint64_t before = 0;
      if (position > 0) std::memcpy(&before, place(blocks[layer], position - 1), sizeof before);
      x = FakeEngine::layer_output(layer, before, x);
      std::memcpy(place(blocks[layer], position), &x, sizeof x);
    }
  }
  if (segment.want == engine::Want::kTokens) result.tokens.push_back({FakeEngine::sampled(x), -1.0f, {}});
  caches_.give_back(lent, end);
  return result;
}

StatusOr<std::vector<engine::SegmentResult>> BlockEngine::step(const std::shared_ptr<const engine::Shard>&,
                                                               const LayerRange& range,
                                                               std::span<const engine::Segment> segments) {
  std::vector<engine::SegmentResult> results;
  for (const engine::Segment& segment : segments) results.push_back(run(segment, range));
  return results;
}

}  // namespace mesh::sim
