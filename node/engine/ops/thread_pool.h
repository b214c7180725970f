#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace mesh::ops {

/// Threads that share loops. One thread at a time may call parallel_for (the executor); it takes part itself,
/// so a pool of N has N − 1 threads of its own. Idle threads sleep: other programs share the cores. Ranges
/// are handed out as they are asked for, so a thread that wakes late delays nobody.
class ThreadPool {
 public:
  /// `threads` ≥ 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(begin, end) for disjoint ranges of at most `grain` that cover [0, count); returns when all
  /// are done. The body must not throw, and what it computes must not depend on how the range was cut.
  template <class Body>
  void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
    if (count <= 0) return;
    if (workers_.empty() || count <= grain) {
      body(std::int64_t{0}, count);
      return;
    }
    run(count, grain, &body, [](const void* context, std::int64_t begin, std::int64_t end) {
      (*static_cast<const Body*>(context))(begin, end);
    });
  }

 private:
  using Call = void (*)(const void* context, std::int64_t begin, std::int64_t end);

  void run(std::int64_t count, std::int64_t grain, const void* context, Call call);
  void take_ranges();
  void work();

  // The loop that runs now. Written by the caller while open_ is false and nobody is inside.
  std::int64_t count_ = 0;
  std::int64_t grain_ = 1;
  const void* context_ = nullptr;
  Call call_ = nullptr;
  std::atomic<std::int64_t> next_{0};

  std::atomic<bool> open_{false};
  std::atomic<bool> stop_{false};
  std::atomic<std::uint32_t> inside_{0};      // workers that may look at the loop
  std::atomic<std::uint32_t> generation_{0};  // raised for every loop; what idle workers wait on
  std::vector<std::thread> workers_;
};

}  // namespace mesh::ops
