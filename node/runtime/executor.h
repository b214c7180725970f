#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <variant>
#include <vector>

#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "node/engine/engine.h"
#include "node/pipeline/step.h"
#include "node/runtime/fault_points.h"

namespace mesh {

/// An order with what the hop table does not know of it.
struct CacheJob {
  pipeline::CacheOrder order;
  std::shared_ptr<const engine::Shard> shard;  ///< of BeginCache; null: it went away
};

/// The same for a step; `orders` are carried out before it.
struct StepJob {
  pipeline::StepWork work;
  std::shared_ptr<const engine::Shard> shard;  ///< null: it went away, every segment fails
  std::vector<CacheJob> orders;
};

struct StepRecord {
  ModelIdentity identity;
  LayerRange range;
  wire::Lane lane = wire::Lane::kDecode;
  std::uint32_t rows = 0;
  std::size_t segments = 0;
  Duration took{};
};

/// The one thread that begins steps, and the translation of the hop table's caches and kept blocks into the
/// engine's. With an engine that has a device of its own a second thread waits for the steps under way, so
/// that the first prepares the next one meanwhile. run() and carry_out() never wait, because these threads
/// call them, on the strand; call() waits for room and is for other threads.
class Executor {
 public:
  /// Called after each step, by one of the executor's threads.
  using Done = std::function<void(pipeline::StepOutput, const StepRecord&)>;
  /// Called from the executor thread when a block could not be kept.
  using Lost = std::function<void(pipeline::PrefixBlockId)>;
  /// Called from the executor thread when a cache went to host memory or came back, or could not.
  using Moved = std::function<void(const pipeline::CacheMoved&)>;

  static constexpr std::size_t kCapacity = 1024;  ///< lists of orders and calls that wait

  Executor(engine::Engine& engine, Done done, Lost lost, FaultPoints* faults = nullptr, Moved moved = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// At most Engine::steps_at_once() whose Done has not come. Orders wait until all steps given before have
  /// ended. False when it was stopped; the work is then lost.
  bool run(StepJob job) { return queue_.push_beyond(std::move(job)); }
  /// Takes the list when there is room beside steps and calls; else leaves it, to be brought again or with a
  /// step.
  void carry_out(std::vector<CacheJob>& orders);
  /// Runs `call` between two steps, while none is under way.
  bool call(std::function<void()> call) { return queue_.push(std::move(call)); }
  /// Waits for the steps that run; drops what waits.
  void stop();

 private:
  using Job = std::variant<StepJob, std::vector<CacheJob>, std::function<void()>>;

  /// A step under way, or one that has ended already.
  struct Begun {
    pipeline::StepOutput output;
    StepRecord record;
    TimePoint began;
    std::vector<std::size_t> places;            ///< of its segments in `output`
    std::unique_ptr<engine::PendingStep> step;  ///< null: no segment runs
    bool under_way = false;                     ///< counted in under_way_
  };

  void loop();
  void finish_loop();
  void step(StepJob job);
  Begun begin(const StepJob& job);
  void finish(Begun begun);
  /// Returns when no step is under way.
  void wait_for_steps();
  void carry_out(const CacheJob& job);
  StatusOr<engine::CacheId> begin(const CacheJob& job, const pipeline::BeginCache& order);
  void share(const pipeline::ShareBlock& order);
  Status move(pipeline::CacheId cache, bool to_host);
  StatusOr<engine::CacheId> cache_for(const StepJob& job, std::size_t index);

  engine::Engine& engine_;
  const Done done_;
  const Lost lost_;
  const Moved moved_;
  FaultPoints* const faults_;
  BoundedQueue<Job> queue_{kCapacity};
  std::map<pipeline::CacheId, StatusOr<engine::CacheId>> caches_;
  std::set<pipeline::CacheId> not_restored_;  ///< should be back, and have found no memory
  std::map<pipeline::PrefixBlockId, std::shared_ptr<const engine::SharedBlock>> blocks_;

  BoundedQueue<Begun> begun_{kCapacity};
  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t under_way_ = 0;  ///< given to the second thread, not ended
  TimePoint last_end_;
  std::thread thread_, finisher_;
};

}  // namespace mesh
