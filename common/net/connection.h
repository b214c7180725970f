#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "common/base/arrivals.h"
#include "common/base/clock.h"
#include "common/net/message.h"

namespace mesh::net {

/// One accepted socket. It is *parked* (the listener's thread reads what comes), *running* (a worker owns it)
/// or *lingering* (answered and half closed; what still comes is thrown away). `mutex` guards the state, the
/// deadline and the socket's registration with epoll; the input belongs to whoever the state names.
class Connection final : public ClientWatch {
 public:
  enum class State { kParked, kRunning, kLingering, kClosed };

  Connection(std::uint64_t id, int socket, std::string remote_ip, int remote_port);
  ~Connection() override;

  bool gone() const override { return gone_.load(std::memory_order_acquire); }
  void on_gone(std::function<void()> action) override;
  void mark_gone();
  /// Forgets the action; it is not running when this returns.
  void forget_action();

  /// Result of receive(): bytes, or one of these.
  static constexpr long kEnd = 0;
  static constexpr long kWouldBlock = -1;
  static constexpr long kFailed = -2;
  /// Reads from the socket without waiting.
  long receive(char* out, std::size_t size);
  /// Writes without waiting: bytes, kWouldBlock or kFailed.
  long send(std::string_view bytes);
  /// Waits until something came or the client ended its side; false at the deadline or when the socket
  /// failed.
  bool wait_to_receive(TimePoint deadline);
  /// The same for a next request's first byte: polls for it while requests come steadily.
  bool wait_for_request(TimePoint deadline);
  /// Waits for room to send; false at the deadline, when the socket failed and when the client left.
  bool wait_to_send(TimePoint deadline);

  const std::uint64_t id;
  const int socket;
  const std::string remote_ip;
  const int remote_port;

  std::mutex mutex;
  State state = State::kParked;
  TimePoint deadline{};
  bool head_begun = false;  ///< parked with part of a head

  std::string input;         ///< received, not yet used
  std::size_t searched = 0;  ///< parked: of it, where no head ends
  std::size_t served = 0;

 private:
  /// What of `events` came; 0 at the deadline or when the socket failed.
  int wait(int events, TimePoint deadline);

  ArrivalClock requests_;  ///< a worker's
  std::atomic<bool> gone_{false};
  std::mutex action_mutex_;
  std::function<void()> action_;
};

}  // namespace mesh::net
