#include "node/runtime/executor.h"

#include <algorithm>
#include <utility>

#include "common/base/detached.h"
#include "node/runtime/step_convert.h"

namespace mesh {
namespace {

/// Most rows of a step that is begun on the strand. A GPU runs so many without cuBLAS, of which every thread
/// that calls it has a handle and its memory; and to convert more takes longer than a thread switch.
constexpr std::uint32_t kRowsAtOnce = 2;
constexpr std::size_t kMostHandedOver = 64;

}  // namespace

Executor::Executor(engine::Engine& engine, Done done, Lost lost, FaultPoints* faults, Moved moved)
    : engine_(engine),
      done_(std::move(done)),
      faults_(faults),
      caches_(engine, std::move(lost), std::move(moved)) {
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
  caches_.stop();
}

bool Executor::push(Job job) {
  ++waiting_;
  if (queue_.push_beyond(std::move(job))) return true;
  --waiting_;
  return false;
}

bool Executor::begins_at_once(const StepJob& job) const {
  if (waiting_ > 0 || queue_.closed() || !job.orders.empty() || job.work.rows > kRowsAtOnce) return false;
  // Else it might wait for a copy, on the thread that copies.
  if (!caches_.idle()) return false;
  if (job.work.range.empty()) return true;
  return job.work.identity == last_model_ && handed_over_.contains({job.shard.get(), job.work.range});
}

bool Executor::run(StepJob job) {
  {
    const std::unique_lock turn(turn_, std::try_to_lock);
    if (turn && begins_at_once(job)) {
      step(std::move(job));
      return true;
    }
  }
  return push(std::move(job));
}

void Executor::carry_out(std::vector<CacheJob>& orders) {
  if (queue_.size() > kCapacity / 2) return;
  push(std::exchange(orders, {}));  // it fails only when stopped, when nothing need be done
}

bool Executor::call(std::function<void()> call) {
  ++waiting_;
  if (queue_.push(std::move(call))) return true;
  --waiting_;
  return false;
}

void Executor::loop() {
  while (auto job = queue_.pop()) {
    const std::lock_guard turn(turn_);
    if (auto* work = std::get_if<StepJob>(&*job)) {
      if (!queue_.closed()) {
        step(std::move(*work));
      } else {
        give_out(work->orders);  // caches of ended sessions are freed all the same
      }
    } else if (auto* orders = std::get_if<std::vector<CacheJob>>(&*job)) {
      give_out(*orders);
    } else {
      wait_for_steps();
      caches_.wait();
      std::get<std::function<void()>> (*job)();
    }
    --waiting_;
  }
}

void Executor::finish_loop() {
  while (auto begun = begun_.pop()) finish(*std::move(begun));
}

void Executor::give_out(std::vector<CacheJob>& orders) {
  if (orders.empty()) return;
  wait_for_steps();
  for (CacheJob& order : orders) caches_.carry_out(std::move(order));
}

void Executor::wait_for_steps() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return under_way_ == 0; });
}

void Executor::step(StepJob job) {
  give_out(job.orders);
  pass(faults_, FaultPoint::kBeforeCompute);
  if (!job.work.range.empty()) last_model_ = job.work.identity;
  Begun begun = begin(job);
  const std::pair of(job.shard.get(), job.work.range);
  if (begun.step == nullptr || begun.step->ended() || !finisher_.joinable()) {
    handed_over_.erase(of);
    return finish(std::move(begun));
  }
  if (handed_over_.size() >= kMostHandedOver) handed_over_.clear();
  handed_over_.insert(of);
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
    bool on_host = false;
    auto cache = caches_.cache_for(work.segments[i], work.range, job.shard, on_host);
    output.segments[i].cache_lost = !cache.ok() && !on_host;
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
