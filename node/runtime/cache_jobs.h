#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "node/engine/engine.h"
#include "node/pipeline/step.h"

namespace mesh {

/// An order with what the hop table does not know of it.
struct CacheJob {
  pipeline::CacheOrder order;
  std::shared_ptr<const engine::Shard> shard;  ///< of BeginCache; null: it went away
};

/// The hop table's caches and kept blocks as the engine's. Orders are carried out as they come; those that
/// copy, to host memory or back, on a thread of their own, beside steps of other caches, and after them
/// whatever needs the memory that they free or the kept blocks: a cache that begins, a block that is dropped.
/// A step waits for the orders that name its own caches.
class CacheJobs {
 public:
  /// Called when a block could not be kept.
  using Lost = std::function<void(pipeline::PrefixBlockId)>;
  /// Called once for each SpillCache and RestoreCache: the cache went to host memory or came back, or could
  /// not. Nobody hears of a way back that a step tries again.
  using Moved = std::function<void(const pipeline::CacheMoved&)>;

  CacheJobs(engine::Engine& engine, Lost lost, Moved moved);
  ~CacheJobs() { stop(); }
  CacheJobs(const CacheJobs&) = delete;
  CacheJobs& operator=(const CacheJobs&) = delete;

  // Whoever has the executor's turn:
  void carry_out(CacheJob job);
  /// The engine's cache of a segment, opened when there is none and it starts from nothing. `on_host`: with
  /// an error, its tokens are in host memory still.
  StatusOr<engine::CacheId> cache_for(const pipeline::StepSegment& segment, const LayerRange& range,
                                      const std::shared_ptr<const engine::Shard>& shard, bool& on_host);
  /// Returns when everything was carried out.
  void wait();
  /// Nothing waits or is under way, what Lost and Moved are told within included, and no cache has yet to
  /// come back: no step will wait for a copy.
  bool idle() const;

  /// Waits for the copy under way; of what waits only caches are freed.
  void stop();

 private:
  void loop();
  bool goes_behind(const CacheJob& job) const;
  void run(const CacheJob& job);
  StatusOr<engine::CacheId> begin(const CacheJob& job, const pipeline::BeginCache& order);
  void share(const pipeline::ShareBlock& order);
  void close(pipeline::CacheId cache);
  pipeline::CacheMoved move(pipeline::CacheId cache, bool to_host);
  void move_and_tell(pipeline::CacheId cache, bool to_host);
  StatusOr<engine::CacheId> find(pipeline::CacheId cache) const;  ///< kNotFound: it never began

  engine::Engine& engine_;
  const Lost lost_;
  const Moved moved_;

  mutable std::mutex mutex_;  ///< never held during a call of the engine that copies
  std::condition_variable changed_;
  std::map<pipeline::CacheId, StatusOr<engine::CacheId>> caches_;
  std::set<pipeline::CacheId> not_restored_;  ///< should be back, and have found no memory
  std::map<pipeline::PrefixBlockId, std::shared_ptr<const engine::SharedBlock>> blocks_;
  std::deque<CacheJob> behind_;             ///< the first one runs
  std::multiset<pipeline::CacheId> named_;  ///< by these
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace mesh
