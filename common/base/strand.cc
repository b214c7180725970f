#include "common/base/strand.h"

#include <limits>
#include <utility>

#include "common/base/check.h"

namespace mesh {
namespace {
/// Commands that one batch takes before it settles, however many come meanwhile.
constexpr std::size_t kBatch = 1024;
constexpr std::size_t kEndless = std::numeric_limits<std::size_t>::max();
}  // namespace

Strand::Strand(std::size_t capacity, Command settle)
    : capacity_(capacity), settle_(std::move(settle)), thread_([this] { take_over(); }) {}

Strand::~Strand() {
  close();
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  given_up_.notify_one();
  thread_.join();
}

bool Strand::post(Command command) {
  std::unique_lock lock(mutex_);
  if (runner_ != std::this_thread::get_id()) {
    room_.wait(lock, [&] { return closed_ || commands_.size() < capacity_; });
  }
  if (closed_) return false;
  commands_.push_back(std::move(command));
  if (runner_ == std::thread::id()) run(lock, kTurn);
  return true;
}

void Strand::run(std::unique_lock<std::mutex>& lock, std::size_t batches) noexcept {
  runner_ = std::this_thread::get_id();
  for (; batches > 0 && !commands_.empty(); --batches) {
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
  if (commands_.empty()) {
    idle_.notify_all();
  } else {
    given_up_.notify_one();
  }
}

void Strand::take_over() {
  std::unique_lock lock(mutex_);
  while (true) {
    given_up_.wait(lock, [&] { return ended_ || left_over(); });
    if (ended_) return;
    run(lock, kEndless);
  }
}

void Strand::close() {
  std::unique_lock lock(mutex_);
  MESH_CHECK(runner_ != std::this_thread::get_id());
  closed_ = true;
  room_.notify_all();
  idle_.wait(lock, [&] { return runner_ == std::thread::id() && commands_.empty(); });
}

bool Strand::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace mesh
