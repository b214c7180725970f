#include "common/base/strand.h"

#include <utility>

#include "common/base/check.h"

namespace mesh {
namespace {
/// Commands that one batch takes before it settles, however many come meanwhile.
constexpr std::size_t kBatch = 1024;
}  // namespace

Strand::Strand(std::size_t capacity, Command settle) : capacity_(capacity), settle_(std::move(settle)) {}

bool Strand::post(Command command) {
  std::unique_lock lock(mutex_);
  if (runner_ != std::this_thread::get_id()) {
    room_.wait(lock, [&] { return closed_ || commands_.size() < capacity_; });
  }
  if (closed_) return false;
  commands_.push_back(std::move(command));
  if (runner_ == std::thread::id()) run(lock);
  return true;
}

void Strand::run(std::unique_lock<std::mutex>& lock) noexcept {
  runner_ = std::this_thread::get_id();
  while (!commands_.empty()) {
    for (std::size_t taken = 0; taken < kBatch && !commands_.empty(); ++taken) {
      Command command = std::move(commands_.front());
      commands_.pop_front();
      lock.unlock();
      room_.notify_one();
      command();
      command = nullptr;  // what it holds ends outside of the lock
      lock.lock();
    }
    lock.unlock();
    settle_();
    lock.lock();
  }
  runner_ = std::thread::id();
  idle_.notify_all();
}

void Strand::close() {
  std::unique_lock lock(mutex_);
  MESH_CHECK(runner_ != std::this_thread::get_id());
  closed_ = true;
  room_.notify_all();
  idle_.wait(lock, [&] { return runner_ == std::thread::id(); });
}

bool Strand::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace mesh
