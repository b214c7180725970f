#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "node/engine/engine.h"

namespace mesh::engine {

/// Threads that read and pack for one load: enough to pack while the disk reads, and to read with a few
/// requests at a time.
unsigned load_threads();

/// What the threads of one load share: how much they have read, and whether they shall go on.
class LoadMeter {
 public:
  explicit LoadMeter(std::uint64_t total) : total_(total) {}

  /// `bytes` more are read. kCancelled when the load ends.
  Status add(std::uint64_t bytes);
  /// Every later add() fails.
  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }
  std::uint64_t done() const { return done_; }
  std::uint64_t total() const { return total_; }
  Status cancelled() const;

 private:
  friend class LoadCrew;
  const std::uint64_t total_;
  std::atomic<std::uint64_t> done_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// One matrix, or the norms of a layer: made by one thread.
struct LoadTask {
  std::string part;  ///< stands before its errors
  std::function<Status()> run;
  std::function<void()> announce;  ///< lets its first bytes be read from disk; returns at once
};

/// Runs tasks on load_threads() threads, begun in their order, while the calling thread tells `progress`
/// (which may be empty) what was read. The first of the errors by the order of tasks; kCancelled when
/// progress said so.
Status run_load_tasks(const std::vector<LoadTask>& tasks, LoadMeter& meter, const ProgressCallback& progress);

}  // namespace mesh::engine
