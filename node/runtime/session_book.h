#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "common/base/clock.h"
#include "node/pipeline/hop_table.h"

namespace mesh {

/// What threads must know without the strand of open sessions: keys for MACs, and who still uses which
/// layers. The strand writes it after each change of the hop table.
class SessionBook {
 public:
  struct Entry {
    pipeline::SessionKeys keys;
    ModelIdentity identity;
    LayerRange range;
    bool takes_ids = false;
  };

  void set(const wire::HopKey& hop, Entry entry);
  std::optional<Entry> find(const wire::HopKey& hop) const;
  std::optional<pipeline::SessionKeys> keys(const wire::HopKey& hop) const;
  /// Forgets what the table no longer has.
  void sweep(const pipeline::HopTable& table);

  bool empty() const;
  /// Ends all waiting, for good.
  void close();
  /// Waits until no session of `identity` uses layers of `range` but those that `goes_on` says go on without
  /// them, or until `deadline`; true if none does.
  bool wait_unused(const ModelIdentity& identity, const LayerRange& range, TimePoint deadline,
                   const std::function<bool(const Entry&)>& goes_on) const;
  bool wait_empty(TimePoint deadline) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<wire::HopKey, Entry> entries_;
  bool closed_ = false;
};

}  // namespace mesh
