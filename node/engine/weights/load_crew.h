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

/// Threads that read and pack for one load: two for each core, so that one packs while another waits for the
/// disk, and at most eight, which keep the disk busy with a few requests at a time.
unsigned load_threads();

/// What the threads of one load share: how far it is, and whether they shall go on.
class LoadMeter {
 public:
  explicit LoadMeter(std::uint64_t total) : total_(total) {}

  /// `bytes` more are read and packed. kCancelled when the load ends.
  Status add(std::uint64_t bytes);
  /// So many of all bytes have come to this machine; not to be called for what was here before.
  void fetched(std::uint64_t bytes);
  /// Something is ready that progress is to hear of.
  void tell();
  /// Every later add() fails.
  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }
  std::uint64_t done() const { return done_; }
  std::uint64_t total() const { return total_; }
  Status cancelled() const;

 private:
  friend class LoadCrew;
  template <class Change>
  void note(const Change& change);

  const std::uint64_t total_;
  std::atomic<std::uint64_t> done_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::uint64_t fetched_ = 0;  // guarded by it, as what follows
  std::uint64_t changes_ = 0;
  bool bringing_ = false;
  std::condition_variable changed_;
};

/// A piece of a matrix, or the norms of a layer: what one thread does at a time.
struct LoadTask {
  std::string part;  ///< stands before its errors
  std::function<Status()> run;
  std::function<Status()> wait = {};  ///< until it can be run; an error ends the load. Empty: at once
};

/// Runs tasks on load_threads() threads, begun in their order, while the calling thread tells `progress`
/// (which may be empty) how far they are: of what is fetched while `bring` runs and fetches, else of what was
/// read. `bring` (which may be empty) runs on a thread of its own and brings what tasks wait for; an error of
/// it ends the load. The first of the errors by the order of tasks, else that of `bring`; kCancelled when
/// progress said so.
Status run_load_tasks(const std::vector<LoadTask>& tasks, LoadMeter& meter, const ProgressCallback& progress,
                      const std::function<Status()>& bring = {});

}  // namespace mesh::engine
