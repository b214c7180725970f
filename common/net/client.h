#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/net/address.h"
#include "common/net/headers.h"
#include "common/net/limits.h"
#include "common/net/range.h"
#include "common/net/url.h"

namespace mesh::net {

struct ClientOptions {
  /// Which addresses the host may turn out to have.
  AddressPolicy addresses = AddressPolicy::any();
  Duration connect_timeout = limits::kConnectTimeout;
  /// A PEM file of trusted roots for https; the system's when empty.
  std::string ca_file;
};

struct CallOptions {
  Headers headers;
  /// For the whole exchange, connecting included; however slowly the server drips.
  Duration timeout = limits::kRequestTimeout;
  /// A longer body is kResourceExhausted; bodies that go to a sink have no limit but a range's.
  std::size_t max_response = limits::kMaxResponseBytes;
  /// Ask once more when the server had closed the kept connection. POST only: get() always does.
  bool idempotent = false;
  /// When set, the body goes out in pieces of at most limits::kPieceBytes, and this is called before each, in
  /// the caller's thread; it may pause.
  std::function<void()> before_piece;
};

struct Reply {
  int status = 0;
  Headers headers;
  std::string body;

  /// OK for 2xx, else the server's error (status_of_reply).
  Status as_status() const;
};

/// Takes a piece of a body; false ends the transfer with kCancelled.
using BodySink = std::function<bool(std::string_view)>;

/// One kept connection to one server, used by one thread at a time. Never follows redirects. An error status
/// of the server is a Reply; a StatusOr error means no whole answer came: kUnavailable (connecting, cut off),
/// kDeadlineExceeded, kPermissionDenied (address class), kResourceExhausted (answer too long), kCancelled.
class Client {
 public:
  static StatusOr<std::unique_ptr<Client>> make(std::string_view url, ClientOptions options = {});
  virtual ~Client() = default;

  virtual StatusOr<Reply> get(const std::string& path, const CallOptions& options = {}) = 0;
  virtual StatusOr<Reply> post(const std::string& path, std::string_view body, std::string_view content_type,
                               const CallOptions& options = {}) = 0;
  /// GET whose body goes to `sink` (2xx only; other bodies land in Reply::body). With `range`, a 2xx answer
  /// that is not 206 with exactly that range, in whole, is kUnavailable; the sink may then have had a part.
  virtual StatusOr<Reply> download(const std::string& path, std::optional<ByteRange> range,
                                   const BodySink& sink, const CallOptions& options = {}) = 0;
  /// POST whose answer goes to `sink` as it comes, e.g. server-sent events.
  virtual StatusOr<Reply> post_streaming(const std::string& path, std::string_view body,
                                         std::string_view content_type, const BodySink& sink,
                                         const CallOptions& options = {}) = 0;
  /// Ends a call that is under way in another thread with kCancelled. A call that begins later is not
  /// touched.
  virtual void cancel() = 0;
  /// Closes the connection; the next call opens one.
  virtual void disconnect() = 0;
};

}  // namespace mesh::net
