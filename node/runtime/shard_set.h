#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "common/base/status.h"
#include "common/wire/control.h"
#include "node/engine/engine.h"
#include "node/node.h"

namespace mesh {

/// The shards that this node holds, loads and drains. Any thread.
class ShardSet {
 public:
  using ShardPtr = std::shared_ptr<const engine::Shard>;

  /// False when this very shard is ready; one within it is loaded beside it, sharing its parts, so that it
  /// stays when the wider one is dropped. kAlreadyExists while it is being loaded.
  StatusOr<bool> begin_load(const ModelIdentity& identity, const engine::ShardSpec& spec);
  void note_progress(const ModelIdentity& identity, const engine::ShardSpec& spec, std::uint64_t done,
                     std::uint64_t total);
  /// Of a shard that is being loaded, `part`, its first layers, takes sessions from now on. A later part has
  /// more layers.
  void note_part(const engine::ShardSpec& spec, ShardPtr part);
  void finish_load(ShardPtr shard);
  void abandon_load(const ModelIdentity& identity, const engine::ShardSpec& spec);

  /// A shard that can run `range` of the model, one that does not drain if possible; null when none.
  ShardPtr find(const ModelIdentity& identity, const LayerRange& range, bool takes_ids) const;
  /// The same among those that take new sessions.
  ShardPtr find_open(const ModelIdentity& identity, const LayerRange& range, bool takes_ids) const;
  StatusOr<engine::ModelProfile> profile(const ModelIdentity& identity) const;
  /// KV bytes of one token in the widest layer held; 0: no layer is.
  std::uint64_t widest_cache(engine::WeightFormat format) const;

  /// kNotFound with what is held instead.
  Status begin_drain(const ModelIdentity& identity, const LayerRange& range);
  /// The shard that drains goes; its memory is freed with its last user. One of the same layers that was
  /// loaded since stays.
  void remove(const ModelIdentity& identity, const LayerRange& range);

  void note_step(const ModelIdentity& identity, const LayerRange& range, wire::Lane lane, std::uint32_t rows,
                 Duration took);
  std::vector<wire::ShardStatus> statuses() const;
  std::vector<ShardFigures> figures() const;

 private:
  struct Entry {
    ShardFigures figures;
    ShardPtr shard;  ///< null while loading
    ShardPtr part;   ///< while loading: of the layers that are ready, or null

    const engine::Shard* running() const { return shard != nullptr ? shard.get() : part.get(); }
  };
  ShardPtr find_in(const ModelIdentity& identity, const LayerRange& range, bool takes_ids,
                   bool draining) const;
  Entry* entry(const ModelIdentity& identity, const engine::ShardSpec& spec);
  /// Out of the list, to be freed by the caller: steps wait for the mutex.
  std::vector<Entry> take_out(const std::function<bool(const Entry&)>& which);

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

/// Whether a shard of `profile` with `spec` can run `range`.
bool can_run(const engine::ModelProfile& profile, const engine::ShardSpec& spec, const LayerRange& range,
             bool takes_ids);

}  // namespace mesh
