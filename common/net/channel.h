#pragma once

#include <memory>
#include <string>

#include "common/net/client.h"
#include "common/net/httplib_with_limits.h"
#include "common/net/transport.h"

namespace mesh::net {

/// The HTTP library's client over our own sockets: addresses are checked before connecting, each call has one
/// deadline, and any wait can be cancelled.
class Channel final : public httplib::ClientImpl {
 public:
  Channel(const Url& url, ClientOptions options, std::unique_ptr<TlsRoots> roots);
  ~Channel() override;

  /// One exchange. An error says why no whole answer came.
  Status exchange(httplib::Request& request, httplib::Response& response, TimePoint deadline);
  /// Of the last exchange: it used a kept connection and the server sent nothing, so it had most likely
  /// closed it.
  bool was_stale() const { return !connected_now_ && !received_any_; }
  CancelSignal& cancel_signal() { return cancel_; }

 private:
  class Buffered;

  bool create_and_connect_socket(Socket& socket, httplib::Error& failure) override;
  void shutdown_ssl(Socket& socket, bool gracefully) override;
  bool process_socket(const Socket& socket, std::function<bool(httplib::Stream&)> callback) override;
  Status open(Socket& socket);

  const Url url_;
  const ClientOptions options_;
  std::unique_ptr<TlsRoots> roots_;
  CancelSignal cancel_;
  std::unique_ptr<Transport> transport_;
  TimePoint deadline_{};
  Status trouble_;
  bool connected_now_ = false;
  bool received_any_ = false;
};

}  // namespace mesh::net
