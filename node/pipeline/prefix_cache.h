#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/wire/prefix_key.h"
#include "node/pipeline/hop_faults.h"
#include "node/pipeline/step.h"

namespace mesh::pipeline {

/// Which blocks of finished prompts a node keeps, under a budget of bytes: keys to ids. The blocks themselves
/// are the engine's; they live as long as their id is kept or a session has them. Used longest ago goes
/// first, a block before the one that it continues, and none to make room for its own continuation.
class PrefixCache {
 public:
  explicit PrefixCache(std::uint64_t budget, HopFaults faults = {}) : budget_(budget), faults_(faults) {}

  bool on() const { return budget_ > 0; }
  /// The longest beginning of `keys` of which every block is kept for this range; counts as a use of them.
  std::vector<PrefixBlockId> match(const LayerRange& range, std::span<const wire::PrefixKey> keys);
  /// Keeps the block of the last of `keys`, which continue each other; `bytes` is its size. None when its key
  /// is kept already, the block before it is not, or there is no room.
  std::optional<PrefixBlockId> keep(const LayerRange& range, std::span<const wire::PrefixKey> keys,
                                    std::uint64_t bytes);
  /// Lets go of blocks until `bytes` or more came free, or none is left.
  void shrink(std::uint64_t bytes);
  /// The engine could not keep it.
  void lose(PrefixBlockId id);
  /// Blocks let go of since the last call: the engine may free them.
  std::vector<PrefixBlockId> take_dropped() { return std::exchange(dropped_, {}); }

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t layer_blocks() const { return layer_blocks_; }  ///< blocks × layers
  std::uint64_t evicted() const { return evicted_; }

 private:
  using Key = std::pair<LayerRange, wire::PrefixKey>;
  struct Entry {
    PrefixBlockId id = 0;
    std::uint64_t bytes = 0;
    std::uint64_t used = 0;  ///< its place in by_use_
  };
  using Entries = std::map<Key, Entry>;

  void touch(Entries::iterator entry);
  void drop(Entries::iterator entry);
  void evict_one();
  PrefixBlockId next_id();

  std::uint64_t budget_;
  HopFaults faults_;
  Entries entries_;
  std::map<std::uint64_t, Key> by_use_;  ///< the least recent first
  std::uint64_t clock_ = 0, last_id_ = 0;
  std::uint64_t bytes_ = 0, layer_blocks_ = 0, evicted_ = 0;
  std::vector<PrefixBlockId> dropped_;
  std::map<Key, PrefixBlockId> stale_;  ///< with the planted fault alone
};

}  // namespace mesh::pipeline
