#pragma once

#include <functional>
#include <thread>

namespace mesh {

/// Blocks SIGINT and SIGTERM for this thread and those that it starts, and ignores SIGPIPE. Call first in
/// main().
void block_signals();

/// Waits for SIGINT or SIGTERM in a thread of its own: the first calls `on_first`, the second ends the
/// process at once with `exit_code`.
class SignalThread {
 public:
  SignalThread(std::function<void()> on_first, int exit_code);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  void loop(int exit_code);

  const std::function<void()> on_first_;
  int wake_ = -1;
  std::thread thread_;
};

}  // namespace mesh
