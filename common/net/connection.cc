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

bool Connection::wait_to_send(TimePoint deadline) {
  return wait(POLLOUT | POLLRDHUP, deadline) == POLLOUT;
}

int Connection::wait(int events, TimePoint deadline) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return 0;
    pollfd entry{socket, static_cast<short>(events), 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<long long>(left, 60'000)));
    if (ready > 0) return entry.revents & events;
    if (ready < 0 && errno != EINTR) return 0;
  }
}

}  // namespace mesh::net
