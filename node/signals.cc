#include "node/signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <utility>

#include "common/base/check.h"

namespace mesh {
namespace {

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

void block_signals() {
  const sigset_t set = ending_signals();
  MESH_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  ::signal(SIGPIPE, SIG_IGN);
}

SignalThread::SignalThread(std::function<void()> on_first, int exit_code) : on_first_(std::move(on_first)) {
  wake_ = ::eventfd(0, EFD_CLOEXEC);
  MESH_CHECK(wake_ >= 0);
  thread_ = std::thread([this, exit_code] { loop(exit_code); });
}

SignalThread::~SignalThread() {
  const std::uint64_t one = 1;
  MESH_CHECK(::write(wake_, &one, sizeof one) == sizeof one);
  thread_.join();
  ::close(wake_);
}

void SignalThread::loop(int exit_code) {
  const sigset_t set = ending_signals();
  const int signals = ::signalfd(-1, &set, SFD_CLOEXEC);
  MESH_CHECK(signals >= 0);
  bool first = true;
  while (true) {
    std::array<pollfd, 2> watched{pollfd{signals, POLLIN, 0}, pollfd{wake_, POLLIN, 0}};
    if (::poll(watched.data(), watched.size(), -1) < 0) continue;
    if (watched[1].revents != 0) break;
    signalfd_siginfo info{};
    if (::read(signals, &info, sizeof info) != sizeof info) continue;
    if (!first) ::_exit(exit_code);
    first = false;
    on_first_();
  }
  ::close(signals);
}

}  // namespace mesh
