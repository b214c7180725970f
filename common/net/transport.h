#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/net/url.h"

struct ssl_st;
struct ssl_ctx_st;

namespace mesh::net {

/// Wakes a thread that waits for a socket, from another thread.
class CancelSignal {
 public:
  CancelSignal();
  ~CancelSignal();
  CancelSignal(const CancelSignal&) = delete;
  CancelSignal& operator=(const CancelSignal&) = delete;

  void raise();
  void clear();
  bool raised() const { return raised_.load(); }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
  std::atomic<bool> raised_{false};
};

/// Trusted roots for https, shared by a client's connections.
class TlsRoots {
 public:
  /// The system's roots when `ca_file` is empty. Makes the process ignore SIGPIPE.
  static StatusOr<std::unique_ptr<TlsRoots>> load(const std::string& ca_file);
  ~TlsRoots();
  ssl_ctx_st* context() const { return context_; }

 private:
  explicit TlsRoots(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

/// Bytes over a connected socket, plain or TLS, each call with a deadline. The socket is closed by its owner,
/// not here.
class Transport {
 public:
  /// Connects to a numeric address.
  static StatusOr<int> connect(const std::string& ip, int port, TimePoint deadline,
                               const CancelSignal& cancel);

  explicit Transport(int socket, const CancelSignal& cancel) : socket_(socket), cancel_(cancel) {}
  ~Transport();
  /// TLS handshake; checks the certificate against `host`.
  Status secure(const TlsRoots& roots, const std::string& host, TimePoint deadline);

  /// Bytes, 0 at the end, or -1 with status() set.
  ssize_t read(char* out, std::size_t size, TimePoint deadline);
  bool write_all(std::string_view bytes, TimePoint deadline);
  const Status& status() const { return status_; }

 private:
  bool wait(short events, TimePoint deadline);
  /// Waits as OpenSSL asked after `result`; false when it failed for good.
  bool wait_for_tls(int result, TimePoint deadline);

  int socket_;
  const CancelSignal& cancel_;
  ssl_st* ssl_ = nullptr;
  Status status_;
};

}  // namespace mesh::net
