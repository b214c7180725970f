#include "node/engine/cache/cache_table.h"

#include "common/base/check.h"

namespace mesh::engine {
namespace {

std::uint64_t block_count(Position positions) {
  return (std::uint64_t{positions} + kBlockTokens - 1) / kBlockTokens;
}

}  // namespace

std::uint64_t SessionCache::reserved_blocks() const {
  return block_count(max_positions_) * range_.size();
}

Status SessionCache::grow(DeviceOps& ops, Position positions) {
  if (range_.empty()) return absl::OkStatus();
  while (blocks_.size() < block_count(positions)) {
    MESH_ASSIGN_OR_RETURN(DeviceMemory block,
                          ops.allocate(static_cast<std::uint64_t>(layer_block_bytes_) * range_.size()));
    blocks_.push_back(std::move(block));
  }
  return absl::OkStatus();
}

std::vector<std::byte*> SessionCache::blocks_of(std::uint32_t layer) const {
  MESH_CHECK(range_.contains(layer));
  const std::int64_t offset = layer_block_bytes_ * (layer - range_.begin);
  std::vector<std::byte*> blocks;
  blocks.reserve(blocks_.size());
  for (const DeviceMemory& block : blocks_) blocks.push_back(block.get() + offset);
  return blocks;
}

StatusOr<CacheId> CacheTable::open(const ModelIdentity& model, const LayerRange& range,
                                   const ops::KvLayout& layout, Position max_positions) {
  if (max_positions == 0)
    return error(StatusCode::kInvalidArgument, "a cache needs room for at least one token");
  const std::int64_t block_bytes = ops_.kv_block_bytes(layout.kv_heads, layout.head_dim, layout.element);
  const std::uint64_t bytes =
      block_count(max_positions) * range.size() * static_cast<std::uint64_t>(block_bytes);
  MESH_ASSIGN_OR_RETURN(MemoryBudget::Reservation memory,
                        budget_.reserve(MemoryUseKind::kCache, bytes,
                                        fmt::format("the KV cache of {} tokens in layers {}", max_positions,
                                                    to_string(range))));
  auto cache =
      std::make_shared<SessionCache>(model, range, layout, block_bytes, max_positions, std::move(memory));
  const std::lock_guard lock(mutex_);
  last_id_ = last_id_.next();
  caches_.emplace(last_id_, std::move(cache));
  return last_id_;
}

StatusOr<std::shared_ptr<SessionCache>> CacheTable::find(CacheId id) const {
  const auto found = caches_.find(id);
  if (found == caches_.end()) return error(StatusCode::kNotFound, "no cache {}: it was closed", id.value);
  return found->second;
}

Status CacheTable::trim(CacheId id, Position position) {
  const std::lock_guard lock(mutex_);
  MESH_ASSIGN_OR_RETURN(const std::shared_ptr<SessionCache> cache, find(id));
  if (cache->in_step_) return error(StatusCode::kUnavailable, "cache {} is in a step", id.value);
  if (position > cache->next_) {
    return error(StatusCode::kOutOfRange, "cannot trim to token {}: the cache has {}", position,
                 cache->next_);
  }
  cache->next_ = position;
  return absl::OkStatus();
}

void CacheTable::close(CacheId id) {
  std::shared_ptr<SessionCache> closed;  // freed outside of the lock
  const std::lock_guard lock(mutex_);
  const auto found = caches_.find(id);
  if (found == caches_.end()) return;
  closed = std::move(found->second);
  caches_.erase(found);
}

StatusOr<CacheState> CacheTable::state(CacheId id) const {
  const std::lock_guard lock(mutex_);
  MESH_ASSIGN_OR_RETURN(const std::shared_ptr<SessionCache> cache, find(id));
  return CacheState{cache->range(), cache->next_, cache->max_positions(), cache->reserved_blocks(),
                    cache->reserved_bytes()};
}

std::uint64_t CacheTable::count() const {
  const std::lock_guard lock(mutex_);
  return caches_.size();
}

std::uint64_t CacheTable::blocks() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t blocks = 0;
  for (const auto& [id, cache] : caches_) blocks += cache->reserved_blocks();
  return blocks;
}

StatusOr<std::shared_ptr<SessionCache>> CacheTable::lend(CacheId id, const ModelIdentity& model,
                                                         const LayerRange& range, Position start,
                                                         std::uint32_t rows) {
  const std::lock_guard lock(mutex_);
  MESH_ASSIGN_OR_RETURN(std::shared_ptr<SessionCache> cache, find(id));
  if (cache->model() != model)
    return error(StatusCode::kInvalidArgument, "cache {} is of another model", id.value);
  if (cache->range() != range) {
    return error(StatusCode::kInvalidArgument, "cache {} was opened for layers {}, the step runs {}",
                 id.value, to_string(cache->range()), to_string(range));
  }
  if (cache->in_step_)
    return error(StatusCode::kInvalidArgument, "cache {} occurs twice in a step", id.value);
  if (start > cache->next_) {
    return error(StatusCode::kOutOfRange, "the segment starts at token {}, the cache has {}", start,
                 cache->next_);
  }
  if (std::uint64_t{start} + rows > cache->max_positions()) {
    return error(StatusCode::kOutOfRange, "the segment ends at token {}, the cache has room for {}",
                 std::uint64_t{start} + rows, cache->max_positions());
  }
  cache->next_ = start;
  cache->in_step_ = true;
  return cache;
}

void CacheTable::give_back(SessionCache& cache, Position next) {
  const std::lock_guard lock(mutex_);
  cache.next_ = next;
  cache.in_step_ = false;
}

}  // namespace mesh::engine
