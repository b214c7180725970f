#include "node/engine/ops/thread_pool.h"

#include <algorithm>

#include "common/base/check.h"

namespace mesh::ops {
namespace {
// About 5 µs: the next loop of a forward usually follows within it, and waking a sleeping thread costs more.
constexpr int kSpins = 200;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}
}  // namespace

ThreadPool::ThreadPool(int threads) {
  MESH_CHECK(threads >= 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(std::int64_t count, std::int64_t grain, const void* context, Call call) {
  count_ = count;
  grain_ = std::max<std::int64_t>(grain, 1);
  context_ = context;
  call_ = call;
  next_.store(0, std::memory_order_relaxed);
  open_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  take_ranges();
  // A worker counts itself in before it looks at open_, and this closes before it looks at inside_: whoever
  // saw the loop open is waited for. Both orders need sequential consistency.
  open_.store(false);
  for (std::uint32_t busy; (busy = inside_.load()) != 0;) {
    for (int i = 0; i < kSpins && inside_.load() == busy; ++i) pause_briefly();
    if (inside_.load() == busy) inside_.wait(busy);
  }
}

void ThreadPool::take_ranges() {
  for (std::int64_t begin; (begin = next_.fetch_add(grain_)) < count_;) {
    call_(context_, begin, std::min(begin + grain_, count_));
  }
}

void ThreadPool::work() {
  std::uint32_t seen = 0;
  for (;;) {
    for (int i = 0; i < kSpins && generation_.load() == seen; ++i) pause_briefly();
    generation_.wait(seen);
    seen = generation_.load();
    if (stop_.load()) return;
    inside_.fetch_add(1);
    if (open_.load()) take_ranges();
    if (inside_.fetch_sub(1) == 1) inside_.notify_one();
  }
}

}  // namespace mesh::ops
