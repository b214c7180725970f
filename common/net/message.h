#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/json/json.h"
#include "common/net/headers.h"

namespace mesh::net {

inline constexpr std::string_view kJsonType = "application/json";
inline constexpr std::string_view kEventStreamType = "text/event-stream";
inline constexpr std::string_view kRequestIdHeader = "X-Request-Id";

/// Whether the other side of a connection is still there. Thread-safe; shared by all who wait for it.
class ClientWatch {
 public:
  virtual ~ClientWatch() = default;
  /// True at once when the client closed or reset the connection, or the server is stopping; needs no write
  /// to find out.
  virtual bool gone() const = 0;
  /// Calls `action` once, from another thread, when the client goes; at once if it has gone. Replaces an
  /// earlier action. That thread is the listener's only one: `action` sets flags and wakes who waits, no
  /// more. It is dropped, and no longer running, once the handler and its stream have returned.
  virtual void on_gone(std::function<void()> action) = 0;
};

/// One request, owned by its handler's thread.
struct Request {
  std::string method;
  /// Percent-decoded, without the query.
  std::string path;
  /// What {names} of the route's pattern matched.
  std::map<std::string, std::string> params;
  std::map<std::string, std::string> query;
  Headers headers;
  /// Handlers may move it out.
  std::string body;
  /// From the socket, never from a header.
  std::string remote_ip;
  int remote_port = 0;
  /// X-Request-Id if it was [A-Za-z0-9_.-]{1,128}, else a fresh one; goes out with the answer.
  std::string request_id;
  /// Who is calling, as the access policy found out: an API key's name, a NodeId in hex; "" for anyone.
  std::string principal;
  std::shared_ptr<ClientWatch> client;

  bool client_gone() const { return client->gone(); }
};

/// Sends a streamed answer piece by piece.
class StreamWriter {
 public:
  virtual ~StreamWriter() = default;
  /// Sends now; false when the client is gone or has not read for limits::kWriteTimeout. Then end the stream.
  virtual bool write(std::string_view bytes) = 0;
  virtual bool client_gone() const = 0;
};

struct Response {
  int status = 200;
  std::string content_type{kJsonType};
  std::string body;
  Headers headers;
  /// When set, writes the body instead, in the request's thread. The request may be used until it returns.
  std::function<void(StreamWriter&)> stream;
  /// Bytes that `stream` will write, if known; an answer cut short then closes the connection. HEAD gets it
  /// as well.
  std::optional<std::uint64_t> stream_length;

  static Response json(const json::Value& value, int status = 200);
  static Response text(std::string body, std::string_view content_type = "text/plain; charset=utf-8");
  static Response binary(std::string body, std::string_view content_type = "application/octet-stream");
};

}  // namespace mesh::net
