#include "common/net/client.h"

#include <algorithm>
#include <mutex>

#include "common/net/channel.h"
#include "common/net/error_response.h"

namespace mesh::net {
namespace {

/// What may stand in a request line.
bool is_target(std::string_view path) {
  if (!path.starts_with('/')) return false;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7f || c == '#')
      return false;
  }
  return true;
}

struct Call {
  std::string method;
  std::string path;
  std::string_view body;
  std::string_view content_type;
  std::optional<ByteRange> range;
  const BodySink* sink = nullptr;
  bool idempotent = false;
};

class HttpClient final : public Client {
 public:
  HttpClient(const Url& url, ClientOptions options, std::unique_ptr<TlsRoots> roots)
      : url_(url), channel_(url, std::move(options), std::move(roots)) {}

  StatusOr<Reply> get(const std::string& path, const CallOptions& options) override {
    return run(
        {.method = "GET", .path = path, .body = {}, .content_type = {}, .range = {}, .idempotent = true},
        options);
  }
  StatusOr<Reply> post(const std::string& path, std::string_view body, std::string_view content_type,
                       const CallOptions& options) override {
    return run({.method = "POST",
                .path = path,
                .body = body,
                .content_type = content_type,
                .range = {},
                .idempotent = options.idempotent},
               options);
  }
  StatusOr<Reply> download(const std::string& path, std::optional<ByteRange> range, const BodySink& sink,
                           const CallOptions& options) override {
    return run({.method = "GET",
                .path = path,
                .body = {},
                .content_type = {},
                .range = range,
                .sink = &sink,
                .idempotent = true},
               options);
  }
  StatusOr<Reply> post_streaming(const std::string& path, std::string_view body,
                                 std::string_view content_type, const BodySink& sink,
                                 const CallOptions& options) override {
    return run({.method = "POST",
                .path = path,
                .body = body,
                .content_type = content_type,
                .range = {},
                .sink = &sink,
                .idempotent = options.idempotent},
               options);
  }
  void cancel() override {
    const std::lock_guard lock(mutex_);
    if (busy_) channel_.cancel_signal().raise();
  }
  void disconnect() override { channel_.stop(); }

 private:
  StatusOr<Reply> run(const Call& call, const CallOptions& options);
  StatusOr<Reply> try_once(const Call& call, const CallOptions& options, TimePoint deadline);
  httplib::Request make_request(const Call& call, const CallOptions& options) const;

  const Url url_;
  Channel channel_;
  std::mutex mutex_;
  bool busy_ = false;
};

StatusOr<Reply> HttpClient::run(const Call& call, const CallOptions& options) {
  if (!is_target(call.path)) {
    return error(StatusCode::kInvalidArgument,
                 "'{:.200}' is not a request path: it should begin with / and be percent-encoded", call.path);
  }
  {
    const std::lock_guard lock(mutex_);
    busy_ = true;
  }
  const TimePoint deadline = std::chrono::steady_clock::now() + options.timeout;
  StatusOr<Reply> reply = try_once(call, options, deadline);
  if (reply.status().code() == StatusCode::kUnavailable && call.idempotent && channel_.was_stale()) {
    reply = try_once(call, options, deadline);
  }
  const std::lock_guard lock(mutex_);
  busy_ = false;
  channel_.cancel_signal().clear();
  return reply;
}

httplib::Request HttpClient::make_request(const Call& call, const CallOptions& options) const {
  httplib::Request request;
  request.method = call.method;
  request.path = call.path;
  for (const auto& [name, value] : options.headers) request.headers.emplace(name, value);
  const bool default_port = url_.at.port == (url_.https ? 443 : 80);
  const std::string text = url_.at.text();
  request.headers.emplace("Host", default_port ? text.substr(0, text.rfind(':')) : text);
  if (!request.has_header("User-Agent")) request.headers.emplace("User-Agent", "meshnet");
  if (!call.content_type.empty()) request.headers.emplace("Content-Type", std::string(call.content_type));
  if (call.range) request.headers.emplace("Range", range_header(*call.range));
  if (!call.body.empty()) {
    // As a provider the body is sent from where it lies; as the request's own it would be copied.
    request.content_length_ = call.body.size();
    request.content_provider_ = [body = call.body, &options](std::size_t offset, std::size_t length,
                                                             httplib::DataSink& sink) {
      if (!options.before_piece) return sink.write(body.data() + offset, length);
      options.before_piece();
      return sink.write(body.data() + offset, std::min(length, limits::kPieceBytes));
    };
  }
  return request;
}

StatusOr<Reply> HttpClient::try_once(const Call& call, const CallOptions& options, TimePoint deadline) {
  httplib::Request request = make_request(call, options);
  Reply reply;
  Status refusal;
  std::uint64_t sunk = 0;
  bool to_sink = false;
  request.response_handler = [&](const httplib::Response& head) {
    reply.status = head.status;
    for (const auto& [name, value] : head.headers) reply.headers.add(name, value);
    to_sink = call.sink != nullptr && head.status >= 200 && head.status < 300;
    if (!to_sink || !call.range) return true;
    const auto sent = parse_content_range(reply.headers.get("Content-Range"));
    if (head.status == 206 && sent && sent->range == *call.range) return true;
    refusal = error(StatusCode::kUnavailable, "the server answered another range than {}",
                    range_header(*call.range));
    return false;
  };
  request.content_receiver = [&](const char* bytes, std::size_t count, std::uint64_t, std::uint64_t) {
    if (!to_sink) {
      if (reply.body.size() + count > options.max_response) {
        refusal =
            error(StatusCode::kResourceExhausted, "the answer is longer than {} bytes", options.max_response);
        return false;
      }
      reply.body.append(bytes, count);
      return true;
    }
    sunk += count;
    if (call.range && sunk > call.range->size()) {
      refusal = error(StatusCode::kUnavailable, "the server sent more than it was asked for");
      return false;
    }
    if ((*call.sink)({bytes, count})) return true;
    refusal = error(StatusCode::kCancelled, "the receiver ended the transfer");
    return false;
  };
  httplib::Response response;
  const Status done = channel_.exchange(request, response, deadline);
  if (!refusal.ok()) return with_context(refusal, url_.origin());
  if (!done.ok()) return with_context(done, url_.origin());
  reply.status = response.status;
  if (reply.headers.size() == 0) {
    for (const auto& [name, value] : response.headers) reply.headers.add(name, value);
  }
  if (to_sink && call.range && sunk != call.range->size()) {
    return error(StatusCode::kUnavailable, "{}: the answer was cut short", url_.origin());
  }
  return reply;
}

}  // namespace

Status Reply::as_status() const {
  return status_of_reply(status, body);
}

StatusOr<std::unique_ptr<Client>> Client::make(std::string_view text, ClientOptions options) {
  MESH_ASSIGN_OR_RETURN(const Url url, Url::parse(text));
  if (!url.path.empty() && url.path != "/") {
    return error(StatusCode::kInvalidArgument, "'{:.200}' should name a server alone, without a path", text);
  }
  std::unique_ptr<TlsRoots> roots;
  if (url.https) {
    MESH_ASSIGN_OR_RETURN(roots, TlsRoots::load(options.ca_file));
  }
  return std::unique_ptr<Client>(std::make_unique<HttpClient>(url, std::move(options), std::move(roots)));
}

}  // namespace mesh::net
