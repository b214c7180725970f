#include "common/net/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace mesh::net {

Connection::Connection(std::uint64_t id, int socket, std::string remote_ip, int remote_port)
    : id(id), socket(socket), remote_ip(std::move(remote_ip)), remote_port(remote_port) {}

Connection::~Connection() {
  ::close(socket);
}

void Connection::on_gone(std::function<void()> action) {
  const std::lock_guard lock(action_mutex_);
  if (gone()) {
    action();
  } else {
    action_ = std::move(action);
  }
}

void Connection::mark_gone() {
  const std::lock_guard lock(action_mutex_);
  if (gone_.exchange(true)) return;
  if (action_) action_();
  action_ = nullptr;
}

void Connection::forget_action() {
  const std::lock_guard lock(action_mutex_);
  action_ = nullptr;
}

long Connection::receive(char* out, std::size_t size) {
  while (true) {
    const ssize_t count = ::recv(socket, out, size, MSG_DONTWAIT);
    if (count >= 0) return count;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return kWouldBlock;
    if (errno != EINTR) return kFailed;
  }
}

long Connection::send(std::string_view bytes) {
  while (true) {
    const ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) return count;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return kWouldBlock;
    if (errno != EINTR) return kFailed;
  }
}

bool Connection::wait_to_receive(TimePoint deadline) {
  return wait(POLLIN, deadline) != 0;
}

bool Connection::wait_for_request(TimePoint deadline) {
  const SteadyClock clock;
  bool came = false;
  if (const auto window = requests_.next(clock.now()); window && window->from < deadline) {
    came = wait_to_receive(window->from);
    if (!came) {
      pollfd entry{socket, POLLIN, 0};
      const auto end = ArrivalClock::poll(std::min(window->until, deadline),
                                          [&entry] { return ::poll(&entry, 1, 0) > 0; });
      requests_.polled(end, clock.now());
    }
  }
  if (!came && !wait_to_receive(deadline)) return false;
  requests_.arrived(clock.now());
  return true;
}

bool Connection::wait_to_send(TimePoint deadline) {
  return wait(POLLOUT | POLLRDHUP, deadline) == POLLOUT;
}

int Connection::wait(int events, TimePoint deadline) {
  while (true) {
    const auto left =
        std::min<Duration>(deadline - std::chrono::steady_clock::now(), std::chrono::minutes(1));
    if (left <= Duration{}) return 0;
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    const timespec patience{seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
    pollfd entry{socket, static_cast<short>(events), 0};
    const int ready = ::ppoll(&entry, 1, &patience, nullptr);
    if (ready > 0) return entry.revents & events;
    if (ready < 0 && errno != EINTR) return 0;
  }
}

}  // namespace mesh::net
