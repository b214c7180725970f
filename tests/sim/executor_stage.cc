#include "tests/sim/executor_stage.h"

#include <utility>

namespace mesh::sim {

ExecutorStage::ExecutorStage(engine::Engine& engine, std::shared_ptr<const engine::Shard> shard)
    : shard_(std::move(shard)),
      executor_(
          engine,
          [this](pipeline::StepOutput output, const StepRecord&) {
            const std::lock_guard lock(mutex_);
            output_ = std::move(output);
            changed_.notify_all();
          },
          [this](pipeline::PrefixBlockId id) {
            const std::lock_guard lock(mutex_);
            lost_.push_back(id);
          },
          nullptr,
          [this](const pipeline::CacheMoved& moved) {
            const std::lock_guard lock(mutex_);
            moved_.push_back(moved);
          }) {}

void ExecutorStage::carry_out(std::vector<pipeline::CacheOrder> orders) {
  std::vector<CacheJob> jobs;
  jobs.reserve(orders.size());
  for (pipeline::CacheOrder& order : orders) jobs.push_back({std::move(order), shard_});
  executor_.carry_out(jobs);
  executor_.call([this] {
    const std::lock_guard lock(mutex_);
    carried_out_ = true;
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return std::exchange(carried_out_, false); });
}

pipeline::StepOutput ExecutorStage::run(pipeline::StepWork work) {
  executor_.run({std::move(work), shard_, {}});
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return output_.has_value(); });
  pipeline::StepOutput output = std::move(output_).value();
  output_.reset();
  return output;
}

std::vector<pipeline::CacheMoved> ExecutorStage::take_moved() {
  const std::lock_guard lock(mutex_);
  return std::exchange(moved_, {});
}

std::vector<pipeline::PrefixBlockId> ExecutorStage::take_lost() {
  const std::lock_guard lock(mutex_);
  return std::exchange(lost_, {});
}

}  // namespace mesh::sim
