#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <string_view>

namespace mesh::net {

/// A client that sends exactly the bytes it is told to. For tests.
class TestSocket {
 public:
  struct Unconnected {};
  TestSocket(int port, Unconnected)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), port_(port) {}
  explicit TestSocket(int port) : TestSocket(port, Unconnected()) { connect(); }
  void connect() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~TestSocket() { close(); }
  TestSocket(const TestSocket&) = delete;
  TestSocket& operator=(const TestSocket&) = delete;

  bool connected() const { return connected_; }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  /// All until the server closes, or what came within `patience`, which only bounds a test that fails.
  std::string read_all(std::chrono::milliseconds patience = std::chrono::seconds(30)) {
    return read_while([](const std::string&) { return true; }, patience);
  }
  /// Until `text` has come.
  std::string read_until(std::string_view text,
                         std::chrono::milliseconds patience = std::chrono::seconds(30)) {
    return read_while([&](const std::string& got) { return got.find(text) == std::string::npos; }, patience);
  }
  /// Whether the server closed within `patience`.
  bool closed_within(std::chrono::milliseconds patience = std::chrono::seconds(30)) {
    read_all(patience);
    return closed_;
  }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  template <class Condition>
  std::string read_while(Condition wanted, std::chrono::milliseconds patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    std::string got;
    char buffer[16384];
    while (!closed_ && wanted(got)) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
      pollfd entry{socket_, POLLIN, 0};
      if (left <= 0 || ::poll(&entry, 1, static_cast<int>(left)) <= 0) break;
      const ssize_t count = ::recv(socket_, buffer, sizeof buffer, 0);
      if (count <= 0) {
        closed_ = true;
      } else {
        got.append(buffer, static_cast<std::size_t>(count));
      }
    }
    return got;
  }

  int socket_;
  int port_ = 0;
  bool connected_ = false;
  bool closed_ = false;
};

}  // namespace mesh::net
