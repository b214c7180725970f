#include "node/engine/cache/cache_table.h"

#include <utility>

#include "common/base/check.h"

namespace mesh::engine {
namespace {

/// A handle: the memory, what it is of, and its place in the budget.
class Block final : public SharedBlock {
 public:
  Block(const SessionCache& of, DeviceMemory memory, MemoryBudget::Reservation reserved,
        std::shared_ptr<std::atomic<std::uint64_t>> count)
      : model_(of.model()),
        range_(of.range()),
        layout_(of.layout()),
        memory_(std::move(memory)),
        reserved_(std::move(reserved)),
        count_(std::move(count)) {
    *count_ += range_.size();
  }
  ~Block() override { *count_ -= range_.size(); }
  bool fits(const SessionCache& cache) const {
    const ops::KvLayout& other = cache.layout();
    return model_ == cache.model() && range_ == cache.range() && layout_.kv_heads == other.kv_heads &&
           layout_.head_dim == other.head_dim && layout_.element == other.element;
  }
  const DeviceMemory& memory() const { return memory_; }

 private:
  const ModelIdentity model_;
  const LayerRange range_;
  const ops::KvLayout layout_;
  const DeviceMemory memory_;
  const MemoryBudget::Reservation reserved_;
  const std::shared_ptr<std::atomic<std::uint64_t>> count_;
};

Status in_host_memory(CacheId id) {
  return error(StatusCode::kFailedPrecondition, "cache {} is in host memory", id.value);
}

}  // namespace

std::uint64_t SessionCache::reserved_blocks() const {
  return on_host_ ? 0 : kv_blocks(max_positions_) * range_.size();
}

std::uint64_t SessionCache::block_bytes() const {
  return static_cast<std::uint64_t>(layer_block_bytes_) * range_.size();
}

Status SessionCache::make_writable(DeviceOps& ops, Position start, Position end, AllocationFaults* faults) {
  if (range_.empty()) return absl::OkStatus();
  const std::uint64_t bytes = block_bytes();
  for (std::size_t i = start / kKvBlockTokens; i < kv_blocks(end); ++i) {
    if (i < blocks_.size() && blocks_[i].use_count() == 1) continue;
    if (faults != nullptr) MESH_RETURN_IF_ERROR(faults->check(bytes));
    MESH_ASSIGN_OR_RETURN(DeviceMemory block, ops.allocate(bytes));
    if (i == blocks_.size()) {
      blocks_.push_back(std::move(block));
      continue;
    }
    if (std::uint64_t{i} * kKvBlockTokens < start) ops.copy(blocks_[i].get(), block.get(), bytes);
    blocks_[i] = std::move(block);
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
      kv_blocks(max_positions) * range.size() * static_cast<std::uint64_t>(block_bytes);
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
  if (cache->on_host_ && !cache->range().empty()) cache->host_.resize(kv_blocks(position));
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<const SharedBlock>> CacheTable::share(CacheId id, std::uint32_t index) {
  const std::lock_guard lock(mutex_);
  MESH_ASSIGN_OR_RETURN(const std::shared_ptr<SessionCache> cache, find(id));
  if (cache->in_step_) return error(StatusCode::kUnavailable, "cache {} is in a step", id.value);
  if (index >= cache->next_ / kKvBlockTokens || cache->range().empty()) {
    return error(StatusCode::kOutOfRange, "block {} of a cache with {} tokens is not full", index,
                 cache->next_);
  }
  if (cache->on_host_) return in_host_memory(id);
  const std::uint64_t bytes = cache->block_bytes();
  MESH_ASSIGN_OR_RETURN(MemoryBudget::Reservation reserved,
                        budget_.reserve(MemoryUseKind::kCache, bytes, "a kept block of a prompt"));
  return std::make_shared<const Block>(*cache, cache->blocks_[index], std::move(reserved), shared_);
}

Status CacheTable::attach(CacheId id, std::span<const std::shared_ptr<const SharedBlock>> blocks,
                          Position tokens) {
  const std::lock_guard lock(mutex_);
  MESH_ASSIGN_OR_RETURN(const std::shared_ptr<SessionCache> cache, find(id));
  if (cache->in_step_ || cache->next_ > 0)
    return error(StatusCode::kInvalidArgument, "cache {} has tokens already", id.value);
  if (cache->on_host_) return in_host_memory(id);
  const std::uint64_t needed = cache->range().empty() ? 0 : tokens / kKvBlockTokens;
  if (tokens % kKvBlockTokens != 0 || tokens > cache->max_positions() || blocks.size() != needed) {
    return error(StatusCode::kInvalidArgument, "{} blocks for {} tokens of a cache with room for {}",
                 blocks.size(), tokens, cache->max_positions());
  }
  std::vector<DeviceMemory> held;
  for (const auto& block : blocks) {
    const auto* own = dynamic_cast<const Block*>(block.get());
    if (own == nullptr || !own->fits(*cache)) {
      return error(StatusCode::kInvalidArgument, "a block of another model or range cannot join cache {}",
                   id.value);
    }
    held.push_back(own->memory());
  }
  cache->blocks_ = std::move(held);
  cache->next_ = tokens;
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<SessionCache>> CacheTable::begin_move(CacheId id, bool to_host) {
  const std::lock_guard lock(mutex_);
  MESH_ASSIGN_OR_RETURN(std::shared_ptr<SessionCache> cache, find(id));
  if (cache->in_step_) return error(StatusCode::kUnavailable, "cache {} is in a step", id.value);
  if (cache->on_host_ == to_host) return std::shared_ptr<SessionCache>();
  cache->in_step_ = true;
  return cache;
}

Status CacheTable::copy_out(SessionCache& cache, std::vector<DeviceMemory>& host) {
  const std::uint64_t bytes = cache.block_bytes();
  const std::uint64_t count = cache.range().empty() ? 0 : kv_blocks(cache.next_);
  std::vector<HostCopy> copies;
  for (std::uint64_t i = 0; i < count; ++i) {
    MESH_ASSIGN_OR_RETURN(DeviceMemory block, host_.take(bytes));
    copies.push_back({cache.blocks_[i].get(), block.get(), bytes});
    host.push_back(std::move(block));
  }
  return ops_.copy_to_host(copies);
}

Status CacheTable::copy_in(SessionCache& cache, std::vector<DeviceMemory>& blocks) {
  const std::uint64_t bytes = cache.block_bytes();
  std::vector<HostCopy> copies;
  for (const DeviceMemory& from : cache.host_) {
    if (faults_ != nullptr) MESH_RETURN_IF_ERROR(faults_->check(bytes));
    MESH_ASSIGN_OR_RETURN(DeviceMemory block, ops_.allocate(bytes));
    copies.push_back({block.get(), from.get(), bytes});
    blocks.push_back(std::move(block));
  }
  return ops_.copy_from_host(copies);
}

StatusOr<std::uint64_t> CacheTable::spill(CacheId id) {
  MESH_ASSIGN_OR_RETURN(const std::shared_ptr<SessionCache> cache, begin_move(id, true));
  if (!cache) return std::uint64_t{0};
  std::vector<DeviceMemory> host;
  const Status copied = copy_out(*cache, host);
  std::vector<DeviceMemory> left;  // freed outside of the lock
  const std::lock_guard lock(mutex_);
  cache->in_step_ = false;
  if (!copied.ok()) return copied;
  left = std::exchange(cache->blocks_, {});
  cache->host_ = std::move(host);
  cache->on_host_ = true;
  cache->memory_ = MemoryBudget::Reservation();
  return cache->host_.size() * cache->block_bytes();
}

StatusOr<std::uint64_t> CacheTable::restore(CacheId id) {
  MESH_ASSIGN_OR_RETURN(const std::shared_ptr<SessionCache> cache, begin_move(id, false));
  if (!cache) return std::uint64_t{0};
  std::vector<DeviceMemory> blocks;
  auto memory = budget_.reserve(MemoryUseKind::kCache, cache->bytes_when_full(), "a cache that comes back");
  const Status copied = memory.ok() ? copy_in(*cache, blocks) : memory.status();
  const std::lock_guard lock(mutex_);
  cache->in_step_ = false;
  if (!copied.ok()) return copied;
  cache->blocks_ = std::move(blocks);
  cache->host_.clear();
  cache->on_host_ = false;
  cache->memory_ = *std::move(memory);
  return cache->blocks_.size() * cache->block_bytes();
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
  return CacheState{cache->range(),
                    cache->next_,
                    cache->max_positions(),
                    cache->reserved_blocks(),
                    cache->reserved_bytes(),
                    cache->on_host_,
                    cache->host_.size() * cache->block_bytes()};
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
  if (cache->on_host_) return in_host_memory(id);
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
