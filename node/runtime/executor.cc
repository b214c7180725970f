#include "node/runtime/executor.h"

#include <algorithm>
#include <utility>

#include "common/base/detached.h"
#include "node/runtime/step_convert.h"

namespace mesh {

Executor::Executor(engine::Engine& engine, Done done, Lost lost, FaultPoints* faults, Moved moved)
    : engine_(engine),
      done_(std::move(done)),
      lost_(std::move(lost)),
      moved_(std::move(moved)),
      faults_(faults) {
  if (engine_.steps_at_once() > 1) finisher_ = std::thread([this] { finish_loop(); });
  thread_ = std::thread([this] { loop(); });
}

Executor::~Executor() {
  stop();
}

void Executor::stop() {
  queue_.close();
  if (thread_.joinable()) thread_.join();
  begun_.close();
  if (finisher_.joinable()) finisher_.join();
}

void Executor::carry_out(std::vector<CacheJob>& orders) {
  if (queue_.size() > kCapacity / 2) return;
  Job job(std::move(orders));
  queue_.try_push(job);  // it fails only when stopped, when nothing need be done
  orders.clear();
}

void Executor::loop() {
  while (auto job = queue_.pop()) {
    if (auto* work = std::get_if<StepJob>(&*job)) {
      if (!queue_.closed()) step(std::move(*work));
    } else if (auto* orders = std::get_if<std::vector<CacheJob>>(&*job)) {
      wait_for_steps();
      for (const CacheJob& one : *orders) carry_out(one);
    } else {
      wait_for_steps();
      std::get<std::function<void()>> (*job)();
    }
  }
}

void Executor::finish_loop() {
  while (auto begun = begun_.pop()) finish(*std::move(begun));
}

void Executor::wait_for_steps() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return under_way_ == 0; });
}

void Executor::carry_out(const CacheJob& job) {
  if (const auto* begins = std::get_if<pipeline::BeginCache>(&job.order)) {
    caches_.insert_or_assign(begins->cache, begin(job, *begins));
  } else if (const auto* shared = std::get_if<pipeline::ShareBlock>(&job.order)) {
    share(*shared);
  } else if (const auto* dropped = std::get_if<pipeline::DropBlock>(&job.order)) {
    blocks_.erase(dropped->id);
  } else if (const auto* spilled = std::get_if<pipeline::SpillCache>(&job.order)) {
    move(spilled->cache, true).IgnoreError();  // moved_ tells
  } else if (const auto* restored = std::get_if<pipeline::RestoreCache>(&job.order)) {
    move(restored->cache, false).IgnoreError();  // the next step tries again
  } else if (const auto found = caches_.find(std::get<pipeline::FreeCache>(job.order).cache);
             found != caches_.end()) {
    if (found->second.ok()) engine_.close_cache(*found->second);
    not_restored_.erase(found->first);
    caches_.erase(found);
  }
}

StatusOr<engine::CacheId> Executor::begin(const CacheJob& job, const pipeline::BeginCache& order) {
  if (job.shard == nullptr)
    return error(StatusCode::kUnavailable, "layers {} are no longer held", to_string(order.range));
  std::vector<std::shared_ptr<const engine::SharedBlock>> blocks;
  for (const pipeline::PrefixBlockId id : order.blocks) {
    const auto found = blocks_.find(id);
    if (found == blocks_.end()) return error(StatusCode::kDataLoss, "a kept block of the prompt is gone");
    blocks.push_back(found->second);
  }
  auto cache = engine_.open_cache(job.shard, order.range, order.max_tokens);
  if (!cache.ok()) return detached(cache.status());
  if (order.tokens == 0) return *cache;
  if (const Status attached = engine_.attach(*cache, blocks, order.tokens); !attached.ok()) {
    engine_.close_cache(*cache);
    return detached(attached);
  }
  return *cache;
}

void Executor::share(const pipeline::ShareBlock& order) {
  const auto cache = caches_.find(order.cache);
  if (cache != caches_.end() && cache->second.ok()) {
    if (auto block = engine_.share(*cache->second, order.index); block.ok()) {
      blocks_.insert_or_assign(order.id, *std::move(block));
      return;
    }
  }
  lost_(order.id);
}

Status Executor::move(pipeline::CacheId cache, bool to_host) {
  const auto found = caches_.find(cache);
  if (found == caches_.end() || !found->second.ok()) return absl::OkStatus();  // nothing is anywhere
  const SteadyClock clock;
  const TimePoint began = clock.now();
  const auto bytes = to_host ? engine_.spill(*found->second) : engine_.restore(*found->second);
  not_restored_.erase(cache);
  if (!to_host && !bytes.ok()) not_restored_.insert(cache);
  const Status status = detached(bytes.status());
  if (moved_) moved_({cache, to_host, status, bytes.ok() ? *bytes : 0, clock.now() - began});
  return status;
}

/// A cache that could not begin as ordered is opened anew when its session starts from nothing.
StatusOr<engine::CacheId> Executor::cache_for(const StepJob& job, std::size_t index) {
  const pipeline::StepSegment& segment = job.work.segments[index];
  if (not_restored_.contains(segment.cache)) MESH_RETURN_IF_ERROR(move(segment.cache, false));
  const auto found = caches_.find(segment.cache);
  if (found != caches_.end() && (found->second.ok() || segment.start > 0)) return found->second;
  auto opened = engine_.open_cache(job.shard, job.work.range, segment.max_tokens);
  if (!opened.ok()) opened = detached(opened.status());
  caches_.insert_or_assign(segment.cache, opened);
  return opened;
}

void Executor::step(StepJob job) {
  if (!job.orders.empty()) wait_for_steps();
  for (const CacheJob& order : job.orders) carry_out(order);
  pass(faults_, FaultPoint::kBeforeCompute);
  Begun begun = begin(job);
  if (begun.step == nullptr || begun.step->ended() || !finisher_.joinable()) return finish(std::move(begun));
  begun.under_way = true;
  {
    const std::lock_guard lock(mutex_);
    ++under_way_;
  }
  begun_.push_beyond(std::move(begun));
}

Executor::Begun Executor::begin(const StepJob& job) {
  const pipeline::StepWork& work = job.work;
  Begun begun;
  begun.began = SteadyClock().now();
  begun.record = {work.identity, work.range, work.lane, work.rows, work.segments.size(), {}};
  pipeline::StepOutput& output = begun.output;
  output.id = work.id;
  output.segments.resize(work.segments.size());
  std::vector<engine::Segment> inputs;
  for (std::size_t i = 0; i < work.segments.size(); ++i) {
    if (job.shard == nullptr) {
      output.segments[i].status =
          error(StatusCode::kUnavailable, "layers {} are no longer held", to_string(work.range));
      continue;
    }
    auto cache = cache_for(job, i);
    output.segments[i].cache_lost = !cache.ok() && !not_restored_.contains(work.segments[i].cache);
    auto input = cache.ok() ? to_engine(work.segments[i], work, *cache) : cache.status();
    if (!input.ok()) {
      output.segments[i].status = detached(input.status());
      continue;
    }
    inputs.push_back(*std::move(input));
    begun.places.push_back(i);
  }
  if (inputs.empty()) return begun;
  auto step = engine_.begin(job.shard, work.range, std::move(inputs));
  if (step.ok()) {
    begun.step = *std::move(step);
  } else {
    for (const std::size_t place : begun.places) output.segments[place].status = detached(step.status());
  }
  return begun;
}

void Executor::finish(Begun begun) {
  if (begun.step != nullptr) {
    auto results = begun.step->finish();
    for (std::size_t i = 0; i < begun.places.size(); ++i) {
      pipeline::SegmentOutput& place = begun.output.segments[begun.places[i]];
      if (results.ok()) {
        place = from_engine(std::move((*results)[i]));
      } else {
        place.status = detached(results.status());
      }
    }
    begun.step.reset();
  }
  {
    const std::lock_guard lock(mutex_);
    const TimePoint now = SteadyClock().now();
    begun.record.took = now - std::max(begun.began, last_end_);
    last_end_ = now;
    if (begun.under_way) --under_way_;
  }
  ended_.notify_all();
  pass(faults_, FaultPoint::kAfterCompute);
  done_(std::move(begun.output), begun.record);
}

}  // namespace mesh
