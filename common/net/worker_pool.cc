#include "common/net/worker_pool.h"

#include <system_error>
#include <utility>

namespace mesh::net {

bool WorkerPool::submit(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || queue_.size() >= max_queued_) return false;
  queue_.push_back(std::move(work));
  if (queue_.size() > idle_ && threads_.size() < max_threads_) {
    try {
      threads_.emplace_back([this] { this->work(); });
    } catch (const std::system_error&) {
      // The system has no thread to give; those that run will come to it.
      if (threads_.empty()) {
        queue_.pop_back();
        return false;
      }
    }
  }
  wake_.notify_one();
  return true;
}

void WorkerPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    wake_.wait(lock, [&] { return stopped_ || !queue_.empty(); });
    --idle_;
    if (queue_.empty()) return;
    std::function<void()> next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    next();
    next = nullptr;
    lock.lock();
  }
}

void WorkerPool::stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    threads.swap(threads_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace mesh::net
