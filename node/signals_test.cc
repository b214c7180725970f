#include "node/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace mesh {
namespace {

/// A child that tells through a pipe when its first signal came, and then waits for ever.
struct Child {
  pid_t pid = 0;
  int told = -1;
};

Child start_child() {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    block_signals();
    const SignalThread signals([&] { EXPECT_EQ(::write(ends[1], "1", 1), 1); }, 7);
    EXPECT_EQ(::write(ends[1], "r", 1), 1);
    while (true) ::pause();
  }
  ::close(ends[1]);
  char ready = 0;
  EXPECT_EQ(::read(ends[0], &ready, 1), 1);
  return {pid, ends[0]};
}

TEST(Signals, TheFirstIsToldTheSecondEndsAtOnce) {
  const Child child = start_child();
  ::kill(child.pid, SIGTERM);
  char told = 0;
  ASSERT_EQ(::read(child.told, &told, 1), 1);
  EXPECT_EQ(told, '1');
  ::kill(child.pid, SIGTERM);
  int status = 0;
  ASSERT_EQ(::waitpid(child.pid, &status, 0), child.pid);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  ::close(child.told);
}

}  // namespace
}  // namespace mesh
