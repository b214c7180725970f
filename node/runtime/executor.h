#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "node/engine/engine.h"
#include "node/pipeline/step.h"
#include "node/runtime/cache_jobs.h"
#include "node/runtime/fault_points.h"
#include "node/runtime/turn.h"

namespace mesh {

/// A step with what the hop table does not know of it; `orders` were given before it.
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

/// The one thread that begins steps, and what the hop table orders of caches (cache_jobs.h). With an engine
/// that has a device of its own a second thread waits for the steps under way, so that the first prepares the
/// next one meanwhile. run() and carry_out() never wait, because these threads call them, on the strand;
/// call() waits for room and is for other threads.
class Executor {
 public:
  /// Called after each step, by one of the executor's threads or within run().
  using Done = std::function<void(pipeline::StepOutput, const StepRecord&)>;
  using Lost = CacheJobs::Lost;    ///< from the executor thread or that of copies
  using Moved = CacheJobs::Moved;  ///< the same

  static constexpr std::size_t kCapacity = 1024;  ///< lists of orders and calls that wait

  Executor(engine::Engine& engine, Done done, Lost lost, FaultPoints* faults = nullptr, Moved moved = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// At most Engine::steps_at_once() whose Done has not come. Orders wait until all steps given before have
  /// ended. False when it was stopped; the work is then lost.
  bool run(StepJob job);
  /// Takes the list when there is room beside steps and calls; else leaves it, to be brought again or with a
  /// step.
  void carry_out(std::vector<CacheJob>& orders);
  /// Runs `call` between two steps, while none is under way and all orders given before were carried out.
  bool call(std::function<void()> call);
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
  /// Whether run() begins it on its own thread, which costs no thread switch: nothing waits before it, and it
  /// is one or two rows, to be embedded or for a GPU that takes such steps over and ran this model's last.
  bool begins_at_once(const StepJob& job) const;
  bool push(Job job);
  void step(StepJob job);
  Begun begin(const StepJob& job);
  void finish(Begun begun);
  /// Has them carried out when no step is under way.
  void give_out(std::vector<CacheJob>& orders);
  /// Returns when no step is under way.
  void wait_for_steps();

  engine::Engine& engine_;
  const Done done_;
  FaultPoints* const faults_;
  BoundedQueue<Job> queue_{kCapacity};
  std::atomic<std::size_t> waiting_ = 0;  ///< given to the executor thread, not done
  Turn turn_;  ///< of whoever begins steps and carries out orders; run() may be called within
  /// Whose last step did not run in begin(); those of other models do, op by op. Under turn_; never looked
  /// into.
  std::set<std::pair<const engine::Shard*, LayerRange>> handed_over_;
  /// Whose layers ran last. The first step after another model's may wait for that one's end and for buffers
  /// of its own shape. Under turn_.
  ModelIdentity last_model_;
  CacheJobs caches_;

  BoundedQueue<Begun> begun_{kCapacity};
  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t under_way_ = 0;  ///< given to the second thread, not ended
  TimePoint last_end_;
  std::thread thread_, finisher_;
};

}  // namespace mesh
