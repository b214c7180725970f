#include "node/runtime/executor.h"

#include <utility>

#include "common/base/detached.h"
#include "node/runtime/step_convert.h"

namespace mesh {

Executor::Executor(engine::Engine& engine, Done done, FaultPoints* faults)
    : engine_(engine), done_(std::move(done)), faults_(faults) {
  thread_ = std::thread([this] { loop(); });
}

Executor::~Executor() {
  stop();
}

void Executor::stop() {
  queue_.close();
  if (thread_.joinable()) thread_.join();
}

void Executor::free(std::vector<pipeline::CacheId>& caches) {
  if (queue_.size() > kCapacity / 2) return;
  Job job(std::move(caches));
  queue_.try_push(job);  // it fails only when stopped, when nothing need be freed
  caches.clear();
}

void Executor::loop() {
  while (auto job = queue_.pop()) {
    if (auto* work = std::get_if<StepJob>(&*job)) {
      if (!queue_.closed()) step(std::move(*work));
    } else if (auto* freed = std::get_if<std::vector<pipeline::CacheId>>(&*job)) {
      for (const pipeline::CacheId id : *freed) {
        const auto found = caches_.find(id);
        if (found == caches_.end()) continue;
        engine_.close_cache(found->second);
        caches_.erase(found);
      }
    } else {
      std::get<std::function<void()>> (*job)();
    }
  }
}

StatusOr<engine::CacheId> Executor::cache_for(const StepJob& job, std::size_t index) {
  const pipeline::CacheId id = job.work.segments[index].cache;
  const auto found = caches_.find(id);
  if (found != caches_.end()) return found->second;
  MESH_ASSIGN_OR_RETURN(const engine::CacheId opened,
                        engine_.open_cache(job.shard, job.work.range, job.max_tokens[index]));
  caches_.emplace(id, opened);
  return opened;
}

void Executor::step(StepJob job) {
  pass(faults_, FaultPoint::kBeforeCompute);
  const SteadyClock clock;
  const pipeline::StepWork& work = job.work;
  const TimePoint began = clock.now();
  pipeline::StepOutput output;
  output.id = work.id;
  output.segments.resize(work.segments.size());

  std::vector<engine::Segment> inputs;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < work.segments.size(); ++i) {
    if (job.shard == nullptr) {
      output.segments[i].status =
          error(StatusCode::kUnavailable, "layers {} are no longer held", to_string(work.range));
      continue;
    }
    auto cache = cache_for(job, i);
    auto input = cache.ok() ? to_engine(work.segments[i], work, *cache) : cache.status();
    if (!input.ok()) {
      output.segments[i].status = detached(input.status());
      continue;
    }
    inputs.push_back(*std::move(input));
    places.push_back(i);
  }
  if (!inputs.empty()) {
    auto results = engine_.step(job.shard, work.range, inputs);
    for (std::size_t i = 0; i < places.size(); ++i) {
      pipeline::SegmentOutput& place = output.segments[places[i]];
      if (results.ok()) {
        place = from_engine(std::move((*results)[i]));
      } else {
        place.status = detached(results.status());
      }
    }
  }
  const StepRecord record{work.identity, work.range,           work.lane,
                          work.rows,     work.segments.size(), clock.now() - began};
  pass(faults_, FaultPoint::kAfterCompute);
  done_(std::move(output), record);
}

}  // namespace mesh
