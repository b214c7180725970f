#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace mesh {

/// Runs commands one after another: who posts runs what waits, unless another thread is at it, which then
/// runs this command, too. So state that only commands touch needs no lock, and a command costs no thread
/// switch. After each batch `settle` runs once, as a command does: it acts on what the batch changed.
/// Commands and `settle` must not block and must not throw, which ends the program: what they own would be
/// left half changed. They may post, which only queues.
///
/// Whoever posts has work of its own to go back to. So after kTurn batches it gives the turn up, and what has
/// come meanwhile is left to the next one who posts or to the strand's own thread, whichever is first.
class Strand {
 public:
  using Command = std::function<void()>;
  /// Batches that a post runs at most. To wake the strand's thread takes as long as a few of them.
  static constexpr std::size_t kTurn = 4;

  Strand(std::size_t capacity, Command settle);
  ~Strand();
  Strand(const Strand&) = delete;
  Strand& operator=(const Strand&) = delete;

  /// Waits while the queue is full, but not inside a command. False when closed; the command is then dropped.
  bool post(Command command);
  /// Later posts fail. Returns when all that was posted before has run; not to be called by a command.
  void close();
  bool closed() const;

 private:
  void run(std::unique_lock<std::mutex>& lock, std::size_t batches) noexcept;
  void take_over();
  bool left_over() const { return !commands_.empty() && runner_ == std::thread::id(); }

  const std::size_t capacity_;
  const Command settle_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable idle_;
  std::condition_variable given_up_;
  std::deque<Command> commands_;
  std::thread::id runner_;  ///< no thread: nothing runs
  bool closed_ = false;
  bool ended_ = false;
  std::thread thread_;  ///< runs only what posts gave up
};

}  // namespace mesh
