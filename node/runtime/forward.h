#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "node/engine/engine.h"
#include "node/node.h"

namespace mesh {

/// Forwards for tests and debugging: the caller brings the whole input and takes the whole output. Executor
/// thread only. Named sessions end when they were not used for a while.
class ForwardSessions {
 public:
  static constexpr std::size_t kMost = 16;
  static constexpr Duration kIdle = std::chrono::seconds(60);

  explicit ForwardSessions(engine::Engine& engine) : engine_(engine) {}

  StatusOr<ForwardReply> run(const std::shared_ptr<const engine::Shard>& shard, ForwardRequest request,
                             TimePoint now);
  void end_idle(TimePoint now);
  /// KV that its sessions reserve. Any thread.
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Session {
    engine::CacheId cache;
    Position next = 0;
    LayerRange range;
    ModelIdentity identity;
    TimePoint used;
    std::uint64_t bytes = 0;
    std::shared_ptr<engine::CachePromise> promise;  ///< of these
  };
  StatusOr<Session> open(const std::shared_ptr<const engine::Shard>& shard, const ForwardRequest& request,
                         Position positions);
  void close(const Session& session);

  engine::Engine& engine_;
  std::map<std::string, Session> sessions_;
  std::atomic<std::uint64_t> bytes_ = 0;
};

}  // namespace mesh
