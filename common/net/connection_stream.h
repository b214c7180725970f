#pragma once

#include <string>

#include "common/net/exchange.h"
#include "common/net/httplib_with_limits.h"

namespace mesh::net {

/// The HTTP library's view of a connection: buffered both ways, with deadlines over whole bodies and single
/// writes.
class ConnectionStream final : public httplib::Stream {
 public:
  ConnectionStream(Connection& connection, ExchangeContext& context)
      : connection_(connection), context_(context) {}
  ~ConnectionStream() override { end_body(); }

  /// Why reading failed.
  enum class Trouble { kNone, kTooSlow, kNoSlot, kClosed };
  Trouble trouble() const { return trouble_; }

  void begin_body();
  void end_body();
  /// Sends all that was written; false when the client is gone or does not read.
  bool flush();
  /// Removes from the connection's input what was read.
  void settle();

  bool is_readable() const override { return true; }
  bool is_writable() const override { return !write_failed_ && !connection_.gone(); }
  ssize_t read(char* out, std::size_t size) override;
  ssize_t write(const char* bytes, std::size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return connection_.socket; }

 private:
  bool wait_for_input();
  TimePoint body_deadline() const;
  bool send_all(std::string_view bytes);

  Connection& connection_;
  ExchangeContext& context_;
  std::size_t used_ = 0;
  std::string output_;
  bool write_failed_ = false;
  Trouble trouble_ = Trouble::kNone;
  TimePoint body_begun_{}, last_received_{};
  std::size_t body_received_ = 0;
  bool holds_slot_ = false;
};

}  // namespace mesh::net
