#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mesh::net {

/// Threads that are started when work waits and none is free, up to a maximum.
class WorkerPool {
 public:
  WorkerPool(std::size_t max_threads, std::size_t max_queued)
      : max_threads_(max_threads), max_queued_(max_queued) {}
  ~WorkerPool() { stop(); }

  /// False when the queue is full or the pool has stopped.
  bool submit(std::function<void()> work);
  /// Runs what is queued, then ends all threads.
  void stop();

 private:
  void work();

  const std::size_t max_threads_;
  const std::size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;
  bool stopped_ = false;
};

}  // namespace mesh::net
