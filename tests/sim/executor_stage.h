#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "node/runtime/executor.h"

namespace mesh::sim {

/// An engine behind the node's own Executor, one order or step at a time: when a call returns, it is done.
class ExecutorStage {
 public:
  ExecutorStage(engine::Engine& engine, std::shared_ptr<const engine::Shard> shard);

  void carry_out(std::vector<pipeline::CacheOrder> orders);
  pipeline::StepOutput run(pipeline::StepWork work);
  /// What came of orders since the last call; `took` is left to the caller.
  std::vector<pipeline::CacheMoved> take_moved();
  std::vector<pipeline::PrefixBlockId> take_lost();

 private:
  const std::shared_ptr<const engine::Shard> shard_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<pipeline::StepOutput> output_;
  bool carried_out_ = false;
  std::vector<pipeline::CacheMoved> moved_;
  std::vector<pipeline::PrefixBlockId> lost_;
  Executor executor_;  ///< last: its thread uses the rest
};

}  // namespace mesh::sim
