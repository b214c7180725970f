#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/base/kv_blocks.h"
#include "node/engine/cache/host_blocks.h"
#include "node/engine/device/device_ops.h"
#include "node/engine/engine.h"
#include "node/engine/weights/memory_budget.h"

namespace mesh::engine {

/// KV of one session for the layers of one range. A block holds 128 tokens of all these layers, layer after
/// layer; its memory is taken when the first token comes to it, out of what was reserved at opening. A block
/// that others hold too is never written: the cache takes one of its own first. A cache in host memory has
/// copies of its own, and reserves nothing on the device.
class SessionCache {
 public:
  SessionCache(const ModelIdentity& model, const LayerRange& range, const ops::KvLayout& layout,
               std::int64_t layer_block_bytes, Position max_positions, MemoryBudget::Reservation memory)
      : model_(model),
        range_(range),
        layout_(layout),
        layer_block_bytes_(layer_block_bytes),
        max_positions_(max_positions),
        memory_(std::move(memory)) {}

  const ModelIdentity& model() const { return model_; }
  const LayerRange& range() const { return range_; }
  const ops::KvLayout& layout() const { return layout_; }
  Position max_positions() const { return max_positions_; }
  std::uint64_t reserved_bytes() const { return memory_.bytes(); }
  std::uint64_t reserved_blocks() const;  ///< on the device
  std::uint64_t block_bytes() const;      ///< of all layers
  std::uint64_t bytes_when_full() const { return kv_blocks(max_positions_) * block_bytes(); }

  /// Lets the tokens [start, end) be written: takes memory for new blocks, and blocks of its own in place of
  /// those that others hold, with the tokens before `start`. The executor alone. `faults`: null, or asked
  /// before each allocation.
  Status make_writable(DeviceOps& ops, Position start, Position end, AllocationFaults* faults = nullptr);
  /// Where layer `layer` (of the model) has its blocks, one for each block taken.
  std::vector<std::byte*> blocks_of(std::uint32_t layer) const;

 private:
  friend class CacheTable;
  const ModelIdentity model_;
  const LayerRange range_;
  const ops::KvLayout layout_;
  const std::int64_t layer_block_bytes_;
  const Position max_positions_;
  MemoryBudget::Reservation memory_;
  std::vector<DeviceMemory> blocks_;  ///< a count above one: others hold it too
  std::vector<DeviceMemory> host_;    ///< the same tokens while it is in host memory
  bool on_host_ = false;
  // Under the table's mutex:
  Position next_ = 0;
  bool in_step_ = false;
};

/// All caches and their cursors. Thread-safe.
class CacheTable {
 public:
  /// `host_bytes`: for caches in host memory. `faults`: null, or asked before each allocation.
  CacheTable(DeviceOps& ops, MemoryBudget& budget, std::uint64_t host_bytes = 0,
             AllocationFaults* faults = nullptr)
      : ops_(ops), budget_(budget), host_(ops, host_bytes, faults), faults_(faults) {}

  StatusOr<CacheId> open(const ModelIdentity& model, const LayerRange& range, const ops::KvLayout& layout,
                         Position max_positions);
  Status trim(CacheId id, Position position);
  StatusOr<std::shared_ptr<const SharedBlock>> share(CacheId id, std::uint32_t index);
  Status attach(CacheId id, std::span<const std::shared_ptr<const SharedBlock>> blocks, Position tokens);
  StatusOr<std::uint64_t> spill(CacheId id);
  StatusOr<std::uint64_t> restore(CacheId id);
  void close(CacheId id);
  StatusOr<CacheState> state(CacheId id) const;
  /// Blocks × layers of the handles that somebody holds.
  std::uint64_t shared_blocks() const { return *shared_; }
  std::uint64_t count() const;
  std::uint64_t blocks() const;  ///< reserved on the device
  const HostBlocks& host() const { return host_; }
  AllocationFaults* faults() const { return faults_; }

  /// Lends a cache to a step: it must be open, of this model and range, lent to no other segment, and its
  /// cursor at least `start`, which then becomes the cursor.
  StatusOr<std::shared_ptr<SessionCache>> lend(CacheId id, const ModelIdentity& model,
                                               const LayerRange& range, Position start, std::uint32_t rows);
  /// Ends the loan; `next` is the new cursor.
  void give_back(SessionCache& cache, Position next);

 private:
  StatusOr<std::shared_ptr<SessionCache>> find(CacheId id) const;
  /// Takes a cache out of everybody's reach, to be moved; null when it is where it shall be.
  StatusOr<std::shared_ptr<SessionCache>> begin_move(CacheId id, bool to_host);
  Status copy_out(SessionCache& cache, std::vector<DeviceMemory>& host);
  Status copy_in(SessionCache& cache, std::vector<DeviceMemory>& blocks);

  DeviceOps& ops_;
  MemoryBudget& budget_;
  HostBlocks host_;
  AllocationFaults* const faults_;
  mutable std::mutex mutex_;
  std::map<CacheId, std::shared_ptr<SessionCache>> caches_;
  CacheId last_id_;
  const std::shared_ptr<std::atomic<std::uint64_t>> shared_ = std::make_shared<std::atomic<std::uint64_t>>(0);
};

}  // namespace mesh::engine
