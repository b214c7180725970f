#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/net/limits.h"
#include "common/net/message.h"

namespace mesh::net {

/// Who may call a route. proto-docs/http.md has the table.
enum class Access {
  kAnyone,
  kApiKey,
  kAdmin,
  /// A control message signed by a node's or the tracker's key.
  kNode,
  /// Each part of the body carries a MAC under a session's secret, which the handler checks.
  kSession,
};

/// Decides for every route but those for anyone. Called from many threads. May fill request.principal.
class AccessPolicy {
 public:
  virtual ~AccessPolicy() = default;
  /// Before the body is read: `request` has all but its body.
  virtual Status admit(Access access, Request& request) = 0;
  /// With the body, before the handler: where a signature over the body is checked.
  virtual Status admit_body(Access access, Request& request) = 0;
};

/// Refuses all.
class DenyAll final : public AccessPolicy {
 public:
  Status admit(Access access, Request& request) override;
  Status admit_body(Access access, Request& request) override;
};

using Handler = std::function<Response(Request&)>;

struct Route {
  std::string method;
  /// "/mesh/v1/models/{identity}/files/{name}": a {name} matches one segment, {name...} at the end matches
  /// the rest.
  std::string pattern;
  Access access;
  Handler handler;
  std::size_t max_body = limits::kDefaultBodyBytes;
  /// Streams and answers that wait for a model: they never take the listener's last kReservedThreads threads.
  bool long_lived = false;
};

/// What happened to one request, for logs and metrics; never its content.
struct RequestRecord {
  std::string method;
  /// The route's pattern; "" when none matched.
  std::string route;
  int status = 0;
  std::string request_id;
  std::string remote_ip;
  std::string principal;
  Duration took{};
  std::size_t body_bytes = 0;
  bool client_gone = false;
};

struct ServerOptions {
  /// HOST:PORT; port 0 takes a free one. IPv6 as [::1]:8080.
  std::string listen = "127.0.0.1:0";
  /// Threads are started when needed.
  std::size_t threads = limits::kDefaultThreads;
  std::size_t max_connections = limits::kMaxConnections;
  Duration idle_timeout = limits::kIdleTimeout;
  Duration head_deadline = limits::kHeadDeadline;
  Duration body_deadline = limits::kBodyDeadline;
  Duration body_rest = limits::kBodyRest;
  std::size_t bodies_bytes = limits::kBodiesBytes;
  Duration write_timeout = limits::kWriteTimeout;
  /// Called after each request, from its thread.
  std::function<void(const RequestRecord&)> observer;
  /// Turns an error of the server itself (no route, too large, not admitted, a handler's exception) into an
  /// answer; error_response() when empty.
  std::function<Response(const Status&, const Request&)> error_answer;
};

/// One listener with threads of its own. Connections that are idle or still sending their headers wait in
/// epoll and hold no thread. A path or method that no route names is refused (404, 405).
class Server {
 public:
  /// Binds and serves. `policy` must outlive the server. Errors: an address that is taken or malformed, a bad
  /// pattern.
  static StatusOr<std::unique_ptr<Server>> start(ServerOptions options, std::vector<Route> routes,
                                                 std::shared_ptr<AccessPolicy> policy);
  virtual ~Server() = default;

  virtual int port() const = 0;
  /// "HOST:PORT" with the real port.
  virtual std::string address() const = 0;
  /// Requests being handled and connections open, for metrics and tests.
  virtual std::size_t active_requests() const = 0;
  virtual std::size_t open_connections() const = 0;
  /// Refuses new connections, closes idle ones, waits up to `grace` for running requests, then cuts them off:
  /// their clients count as gone. Returns when every handler has returned. Idempotent; the destructor calls
  /// stop(0).
  virtual void stop(Duration grace) = 0;
};

}  // namespace mesh::net
