#include "node/engine/weights/load_crew.h"

#include <sys/resource.h>

#include <algorithm>
#include <new>
#include <thread>

#include "common/base/detached.h"

namespace mesh::engine {

unsigned load_threads() {
  constexpr unsigned kMost = 8;
  return std::clamp(2 * std::thread::hardware_concurrency(), 2u, kMost);
}

template <class Change>
void LoadMeter::note(const Change& change) {
  {
    const std::lock_guard lock(mutex_);
    change();
    ++changes_;
  }
  changed_.notify_one();
}

Status LoadMeter::add(std::uint64_t bytes) {
  note([&] { done_ += bytes; });
  return stopped_ ? cancelled() : absl::OkStatus();
}

void LoadMeter::fetched(std::uint64_t bytes) {
  note([&] { fetched_ = bytes; });
}

void LoadMeter::tell() {
  note([] {});
}

Status LoadMeter::cancelled() const {
  return error(StatusCode::kCancelled, "loading was cancelled after {} of {} bytes", done(), total());
}

/// The threads of one run_load_tasks().
class LoadCrew {
  static constexpr int kLessUrgent = 10;

 public:
  LoadCrew(const std::vector<LoadTask>& tasks, LoadMeter& meter, const std::function<Status()>& bring)
      : tasks_(tasks), meter_(meter), results_(tasks.size()) {
    const std::size_t count = std::min<std::size_t>(load_threads(), tasks.size());
    working_ = count;
    meter_.bringing_ = static_cast<bool>(bring);
    if (bring) threads_.emplace_back([this, &bring] { fetch(bring); });
    for (std::size_t i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
  }
  ~LoadCrew() {
    meter_.stop();
    join();
  }

  /// Until the tasks have ended.
  void watch(const ProgressCallback& progress) {
    std::uint64_t told = 0;
    std::unique_lock lock(meter_.mutex_);
    while (true) {
      meter_.changed_.wait(lock, [&] { return working_ == 0 || meter_.changes_ != told; });
      if (meter_.changes_ == told) return;
      told = meter_.changes_;
      const bool fetching = meter_.bringing_ && meter_.fetched_ > 0;
      const LoadProgress so_far{fetching, fetching ? meter_.fetched_ : meter_.done(), meter_.total(), {}};
      lock.unlock();
      const bool go_on = !progress || progress(so_far);
      if (!go_on) cancelled_ = true, meter_.stop();
      lock.lock();
    }
  }
  Status result() {
    join();
    const auto failed = std::ranges::find_if(results_, [](const Status& status) {
      return !status.ok() && status.code() != StatusCode::kCancelled;
    });
    if (failed != results_.end()) return *failed;
    if (cancelled_) return meter_.cancelled();
    return brought_;
  }

 private:
  void work() {
    // Of this thread alone: steps of running sessions come first where cores are few.
    ::setpriority(PRIO_PROCESS, 0, ::getpriority(PRIO_PROCESS, 0) + kLessUrgent);
    for (std::size_t i = next_++; i < tasks_.size() && !meter_.stopped(); i = next_++) {
      const Status status = run(tasks_[i]);
      if (status.ok()) continue;
      results_[i] = detached(with_context(status, tasks_[i].part));
      meter_.stop();
    }
    {
      const std::lock_guard lock(meter_.mutex_);
      --working_;
    }
    meter_.changed_.notify_one();
  }
  static Status run(const LoadTask& task) {
    return guarded([&]() -> Status {
      if (task.wait) MESH_RETURN_IF_ERROR(task.wait());
      return task.run();
    });
  }
  void fetch(const std::function<Status()>& bring) {
    const Status status = guarded(bring);
    if (!status.ok()) meter_.stop();
    brought_ = detached(status);
    meter_.note([&] { meter_.bringing_ = false; });
  }
  template <class Body>
  static Status guarded(const Body& body) {
    try {
      return body();
    } catch (const std::bad_alloc&) {
      return error(StatusCode::kResourceExhausted, "no memory is left to read it");
    }
  }
  void join() {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

  const std::vector<LoadTask>& tasks_;
  LoadMeter& meter_;
  std::vector<Status> results_;  // by task; each written by one thread, read when all have ended
  Status brought_;               // the same of the fetching thread
  std::atomic<std::size_t> next_ = 0;
  std::size_t working_ = 0;  // guarded by the meter's mutex
  bool cancelled_ = false;   // of the watching thread alone
  std::vector<std::thread> threads_;
};

Status run_load_tasks(const std::vector<LoadTask>& tasks, LoadMeter& meter, const ProgressCallback& progress,
                      const std::function<Status()>& bring) {
  LoadCrew crew(tasks, meter, bring);
  crew.watch(progress);
  return crew.result();
}

}  // namespace mesh::engine
