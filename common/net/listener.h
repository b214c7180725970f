#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/net/connection.h"
#include "common/net/exchange.h"
#include "common/net/server.h"
#include "common/net/url.h"
#include "common/net/worker_pool.h"

namespace mesh::net {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  int get() const { return value_; }

 private:
  int value_;
};

struct ListenSocket {
  Descriptor descriptor;
  HostPort at;  ///< with the real port

  static StatusOr<ListenSocket> open(std::string_view host_port);
};

/// One thread accepts and reads heads with epoll; workers run the exchanges. See Connection for who owns what
/// when.
class Listener final : public Server {
 public:
  static StatusOr<std::unique_ptr<Server>> start(ListenSocket socket,
                                                 std::unique_ptr<ExchangeContext> context);
  ~Listener() override { stop(Duration{0}); }

  int port() const override { return socket_.at.port; }
  std::string address() const override { return socket_.at.text(); }
  std::size_t active_requests() const override;
  std::size_t open_connections() const override;
  void stop(Duration grace) override;

 private:
  using ConnectionPtr = std::shared_ptr<Connection>;

  Listener(ListenSocket socket, std::unique_ptr<ExchangeContext> context, Descriptor epoll, Descriptor wake);

  void loop();
  void accept_all();
  void accept_from(std::optional<TimePoint> pause_ends);
  void add(int socket, const std::string& ip, int port);
  bool make_room();
  void on_event(std::uint64_t id, std::uint32_t events);
  void read_head(const ConnectionPtr& connection);
  void drain(const ConnectionPtr& connection);
  void dispatch(const ConnectionPtr& connection);
  void serve(const ConnectionPtr& connection);
  /// Waits on the worker's thread for the head of the next request, for at most limits::kStay and only while
  /// half of the threads are free: a busy connection spares the way over the listener's thread.
  bool next_comes_soon(const ConnectionPtr& connection);
  void refuse(const ConnectionPtr& connection, const Status& status);
  /// Half closes and waits for the client to read the answer. These two want connection->mutex held.
  void linger(const ConnectionPtr& connection);
  void watch(const ConnectionPtr& connection, std::uint32_t events);
  void close(const ConnectionPtr& connection);
  void expire();
  void rest();
  void wake_up();
  std::vector<ConnectionPtr> all() const;

  ListenSocket socket_;
  std::unique_ptr<ExchangeContext> context_;
  Descriptor epoll_;
  Descriptor wake_;
  WorkerPool workers_;

  mutable std::mutex mutex_;
  std::condition_variable all_done_;
  std::map<std::uint64_t, ConnectionPtr> connections_;
  std::size_t active_ = 0;
  std::uint64_t last_id_;
  bool stop_called_ = false;

  std::atomic<bool> stopping_{false};
  std::atomic<bool> ended_{false};
  bool accepting_ = true;
  std::optional<TimePoint> pause_ends_;  ///< of the thread alone, as accepting_
  std::thread thread_;
};

}  // namespace mesh::net
