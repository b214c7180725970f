#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace mesh::net {

/// A server that answers its first, second, … connection with given bytes, whatever is asked. For tests.
class TestListener {
 public:
  enum class After { kClose, kStayOpen, kDrip };

  explicit TestListener(std::vector<std::string> answers, After after = After::kClose)
      : answers_(std::move(answers)),
        after_(after),
        socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(socket_, 16);
    socklen_t length = sizeof address;
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~TestListener() {
    ended_ = true;
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }

  int port() const { return port_; }
  int accepted() const { return accepted_; }

 private:
  void serve() {
    for (const std::string& answer : answers_) {
      const int peer = ::accept(socket_, nullptr, nullptr);
      if (peer < 0) return;
      ++accepted_;
      char buffer[4096];
      [[maybe_unused]] const ssize_t asked = ::recv(peer, buffer, sizeof buffer, 0);
      ::send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
      pollfd entry{peer, POLLIN, 0};
      while (after_ != After::kClose && !ended_ && ::poll(&entry, 1, 10) == 0) {
        if (after_ == After::kDrip) ::send(peer, "x", 1, MSG_NOSIGNAL);
      }
      ::close(peer);
    }
  }

  const std::vector<std::string> answers_;
  const After after_;
  const int socket_;
  int port_ = 0;
  std::atomic<bool> ended_ = false;
  std::atomic<int> accepted_ = 0;
  std::thread thread_;
};

}  // namespace mesh::net
