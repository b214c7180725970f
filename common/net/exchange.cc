#include "common/net/exchange.h"

#include <optional>
#include <utility>

#include "common/identity/random.h"
#include "common/net/connection_stream.h"
#include "common/net/error_response.h"
#include "common/net/head.h"
#include "common/net/httplib_with_limits.h"
#include "common/net/url.h"

namespace mesh::net {
namespace {

bool is_request_id(std::string_view id) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  return !id.empty() && id.size() <= 128 && id.find_first_not_of(kAllowed) == std::string_view::npos;
}

std::string fresh_request_id() {
  return "req-" + to_hex(random_bytes(12));
}

StatusOr<std::map<std::string, std::string>> parse_query(std::string_view text) {
  std::map<std::string, std::string> query;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('&'), text.size());
    std::string pair(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    std::replace(pair.begin(), pair.end(), '+', ' ');
    const std::size_t equals = std::min(pair.find('='), pair.size());
    MESH_ASSIGN_OR_RETURN(std::string key, percent_decode(std::string_view(pair).substr(0, equals)));
    MESH_ASSIGN_OR_RETURN(std::string value,
                          percent_decode(std::string_view(pair).substr(std::min(equals + 1, pair.size()))));
    query.emplace(std::move(key), std::move(value));
  }
  return query;
}

class SinkWriter final : public StreamWriter {
 public:
  SinkWriter(httplib::DataSink& sink, ConnectionStream& stream, const ClientWatch& client)
      : sink_(sink), stream_(stream), client_(client) {}
  bool write(std::string_view bytes) override {
    if (failed_ || client_gone()) return false;
    if (!bytes.empty()) failed_ = !sink_.write(bytes.data(), bytes.size()) || !stream_.flush();
    written_ += bytes.size();
    return !failed_;
  }
  bool client_gone() const override { return client_.gone(); }
  bool failed() const { return failed_; }
  std::uint64_t written() const { return written_; }

 private:
  httplib::DataSink& sink_;
  ConnectionStream& stream_;
  const ClientWatch& client_;
  bool failed_ = false;
  std::uint64_t written_ = 0;
};

/// One request and its answer: the HTTP library parses the head and writes the answer, the rest is ours.
class Exchange final : public httplib::Server {
 public:
  Exchange(ExchangeContext& context, std::shared_ptr<Connection> connection);
  ~Exchange() override;

  bool run();

 private:
  void take_head(httplib::Request& request);
  Status find_route();
  Status prepare();
  Status prepare_once();
  bool has_room_for_body();
  void read_body(httplib::Response& out, const httplib::ContentReader& reader);
  void handle(httplib::Response& out);
  Response call_handler();
  Status body_trouble(int library_status) const;
  void refuse(const Status& status, httplib::Response& out);
  void fill(Response response, httplib::Response& out);
  void fill_stream(httplib::Response& out);
  bool run_stream(httplib::DataSink& sink);

  ExchangeContext& context_;
  std::shared_ptr<Connection> connection_;
  ConnectionStream stream_;
  const TimePoint begun_ = std::chrono::steady_clock::now();
  std::string encoded_path_;
  std::string encoded_query_;
  bool is_http_1_0_ = false;
  Request request_;
  BodyFraming framing_;
  std::optional<Status> prepared_;
  const Route* route_ = nullptr;
  bool holds_slot_ = false;
  std::size_t body_memory_ = 0;  ///< taken of context_.bodies
  bool no_memory_ = false;
  bool must_close_ = false;
  Response response_;
  int status_ = 0;
  std::size_t body_bytes_ = 0;
};

Exchange::Exchange(ExchangeContext& context, std::shared_ptr<Connection> connection)
    : context_(context), connection_(std::move(connection)), stream_(*connection_, context) {
  svr_sock_ = connection_->socket;
  request_.client = connection_;
  request_.remote_ip = connection_->remote_ip;
  request_.remote_port = connection_->remote_port;
  keep_alive_timeout_sec_ =
      std::chrono::duration_cast<std::chrono::seconds>(context.options.idle_timeout).count();
  keep_alive_max_count_ =
      limits::kRequestsPerConnection - std::min(connection_->served, limits::kRequestsPerConnection - 1);

  set_pre_routing_handler([this](const httplib::Request&, httplib::Response& out) {
    const Status ready = prepare_once();
    if (ready.ok() && framing_.has_body()) {
      payload_max_length_ = route_->max_body;
      stream_.begin_body();
      return HandlerResponse::Unhandled;
    }
    ready.ok() ? handle(out) : refuse(ready, out);
    return HandlerResponse::Handled;
  });
  // take_head() gives every request this one path; the routes are ours.
  const auto with_body = [this](const httplib::Request&, httplib::Response& out,
                                const httplib::ContentReader& reader) { read_body(out, reader); };
  Post("/:path", with_body);
  Put("/:path", with_body);
  Patch("/:path", with_body);
  Delete("/:path", with_body);
  set_expect_100_continue_handler([this](const httplib::Request&, httplib::Response& out) {
    const Status ready = prepare_once();
    if (ready.ok()) return 100;
    refuse(ready, out);
    return out.status;
  });
  set_error_handler([this](const httplib::Request&, httplib::Response& out) {
    if (status_ != 0) return HandlerResponse::Handled;
    refuse(with_http_status(error(StatusCode::kInvalidArgument, "malformed HTTP request"), out.status), out);
    return HandlerResponse::Handled;
  });
  set_post_routing_handler([this](const httplib::Request&, httplib::Response& out) {
    if (must_close_) out.headers.erase("Keep-Alive");
  });
}

Exchange::~Exchange() {
  if (holds_slot_) context_.slots.give_back();
  context_.bodies.give_back(body_memory_);
  connection_->forget_action();
}

bool Exchange::run() {
  bool closes = false;
  const bool is_last = connection_->served + 1 >= limits::kRequestsPerConnection;
  const bool answered =
      process_request(stream_, connection_->remote_ip, connection_->remote_port, "", 0, is_last, closes,
                      [this](httplib::Request& request) { take_head(request); });
  const bool sent = stream_.flush();
  stream_.settle();
  if (context_.options.observer) {
    RequestRecord record;
    record.method = request_.method;
    record.route = route_ == nullptr ? "" : route_->pattern;
    record.status = status_;
    record.request_id = request_.request_id;
    record.remote_ip = request_.remote_ip;
    record.principal = request_.principal;
    record.took = std::chrono::steady_clock::now() - begun_;
    record.body_bytes = body_bytes_;
    record.client_gone = connection_->gone();
    context_.options.observer(record);
  }
  return answered && sent && !closes && !is_last && !must_close_ && !connection_->gone();
}

void Exchange::take_head(httplib::Request& request) {
  request_.method = request.method;
  is_http_1_0_ = request.version == "HTTP/1.0";
  const std::size_t question = std::min(request.target.find('?'), request.target.size());
  encoded_path_ = request.target.substr(0, question);
  encoded_query_ = request.target.substr(std::min(question + 1, request.target.size()));
  for (const auto& [name, value] : request.headers) {
    // The library adds these itself, after any that the client sent.
    if (name == "REMOTE_ADDR" || name == "REMOTE_PORT" || name == "LOCAL_ADDR" || name == "LOCAL_PORT")
      continue;
    request_.headers.add(name, value);
  }
  const std::string_view id = request_.headers.get(kRequestIdHeader);
  request_.request_id = is_request_id(id) ? std::string(id) : fresh_request_id();
  request.path = "/path";
  request.ranges.clear();
  // Bodies stay raw, whatever they are.
  request.headers.erase("Content-Type");
}

Status Exchange::find_route() {
  MESH_ASSIGN_OR_RETURN(request_.path, percent_decode(encoded_path_));
  MESH_ASSIGN_OR_RETURN(request_.query, parse_query(encoded_query_));
  MESH_ASSIGN_OR_RETURN(Router::Match match, context_.router.find(request_.method, encoded_path_));
  route_ = match.route;
  request_.params = std::move(match.params);
  return absl::OkStatus();
}

Status Exchange::prepare_once() {
  if (!prepared_) prepared_ = prepare();
  return *prepared_;
}

Status Exchange::prepare() {
  const StatusOr<BodyFraming> framing = body_framing(request_.headers);
  if (!framing.ok()) {
    must_close_ = true;
    return framing.status();
  }
  framing_ = *framing;
  // Until the body is read, the connection is of no use after an answer.
  must_close_ = framing_.has_body();
  MESH_RETURN_IF_ERROR(find_route());
  if (framing_.has_body() &&
      (request_.method == "GET" || request_.method == "HEAD" || request_.method == "OPTIONS")) {
    return error(StatusCode::kInvalidArgument, "{} takes no body", request_.method);
  }
  if (framing_.length > route_->max_body) return body_trouble(413);
  if (route_->access != Access::kAnyone)
    MESH_RETURN_IF_ERROR(context_.policy->admit(route_->access, request_));
  return absl::OkStatus();
}

Status Exchange::body_trouble(int library_status) const {
  if (library_status == 413) {
    return with_http_status(error(StatusCode::kInvalidArgument,
                                  "body is longer than the {} bytes allowed here", route_->max_body),
                            413);
  }
  if (no_memory_) {
    return error(StatusCode::kUnavailable,
                 "the bodies of other requests take the {} MiB that there are for them; try again",
                 context_.options.bodies_bytes >> 20);
  }
  switch (stream_.trouble()) {
    case ConnectionStream::Trouble::kTooSlow:
      return with_http_status(error(StatusCode::kDeadlineExceeded, "the body came too slowly"), 408);
    case ConnectionStream::Trouble::kNoSlot:
      return error(StatusCode::kUnavailable, "too many requests wait for their bodies; try again");
    default:
      return with_http_status(error(StatusCode::kInvalidArgument, "the body is incomplete or malformed"),
                              library_status == 415 ? 415 : 400);
  }
}

bool Exchange::has_room_for_body() {
  constexpr std::size_t kFree = limits::kDefaultBodyBytes, kStep = std::size_t{1} << 20;
  const std::size_t wanted = request_.body.size() - std::min(request_.body.size(), kFree);
  if (wanted <= body_memory_) return true;
  const std::size_t more = (wanted - body_memory_ + kStep - 1) / kStep * kStep;
  no_memory_ = !context_.bodies.try_take(more);
  if (!no_memory_) body_memory_ += more;
  return !no_memory_;
}

void Exchange::read_body(httplib::Response& out, const httplib::ContentReader& reader) {
  constexpr std::uint64_t kTrustedLength = std::uint64_t{4} << 20;
  request_.body.reserve(std::min(framing_.length, kTrustedLength));
  const bool complete = reader([this](const char* bytes, std::size_t count) {
    request_.body.append(bytes, count);
    return request_.body.size() <= route_->max_body && has_room_for_body();
  });
  stream_.end_body();
  if (!complete) return refuse(body_trouble(out.status), out);
  must_close_ = false;
  body_bytes_ = request_.body.size();
  handle(out);
}

void Exchange::handle(httplib::Response& out) {
  if (route_->access != Access::kAnyone) {
    if (const Status admitted = context_.policy->admit_body(route_->access, request_); !admitted.ok()) {
      return refuse(admitted, out);
    }
  }
  if (route_->long_lived && !(holds_slot_ = context_.slots.try_take())) {
    return refuse(error(StatusCode::kUnavailable, "too many requests at once; try again"), out);
  }
  fill(call_handler(), out);
}

Response Exchange::call_handler() {
  try {
    return route_->handler(request_);
  } catch (const std::exception& failure) {
    return context_.error_answer(error(StatusCode::kInternal, "the handler failed: {}", failure.what()),
                                 request_);
  }
}

void Exchange::refuse(const Status& status, httplib::Response& out) {
  if (request_.request_id.empty()) {
    request_.request_id = fresh_request_id();
    must_close_ = true;
  }
  fill(context_.error_answer(status, request_), out);
}

void Exchange::fill(Response response, httplib::Response& out) {
  response_ = std::move(response);
  status_ = response_.status;
  out.status = response_.status;
  out.body.clear();
  out.headers.erase("Content-Type");
  for (const auto& [name, value] : response_.headers) out.headers.emplace(name, value);
  out.headers.emplace(std::string(kRequestIdHeader), request_.request_id);
  if (must_close_) out.headers.emplace("Connection", "close");
  if (response_.stream) {
    fill_stream(out);
  } else {
    out.set_content(std::move(response_.body), response_.content_type);
  }
}

void Exchange::fill_stream(httplib::Response& out) {
  const auto piecewise = [this](std::size_t, httplib::DataSink& sink) { return run_stream(sink); };
  if (response_.stream_length) {
    out.set_content_provider(
        *response_.stream_length, response_.content_type,
        [this](std::size_t, std::size_t, httplib::DataSink& sink) { return run_stream(sink); });
  } else if (is_http_1_0_) {
    must_close_ = true;
    out.set_content_provider(response_.content_type, piecewise);
  } else {
    out.set_chunked_content_provider(response_.content_type, piecewise);
  }
}

bool Exchange::run_stream(httplib::DataSink& sink) {
  if (!stream_.flush()) return false;
  SinkWriter writer(sink, stream_, *connection_);
  try {
    response_.stream(writer);
  } catch (const std::exception&) {
    return false;
  }
  if (writer.failed() || writer.client_gone()) return false;
  if (response_.stream_length) return writer.written() == *response_.stream_length;
  sink.done();
  return true;
}

}  // namespace

Response ExchangeContext::error_answer(const Status& status, const Request& request) const {
  Response response = options.error_answer ? options.error_answer(status, request) : error_response(status);
  return response;
}

bool run_exchange(ExchangeContext& context, const std::shared_ptr<Connection>& connection) {
  return Exchange(context, connection).run();
}

std::string refusal_bytes(const ExchangeContext& context, const Status& status,
                          const Connection& connection) {
  Request request;
  request.remote_ip = connection.remote_ip;
  request.remote_port = connection.remote_port;
  request.request_id = fresh_request_id();
  const Response response = context.error_answer(status, request);
  std::string bytes = fmt::format(
      "HTTP/1.1 {} {}\r\nConnection: close\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}: {}\r\n",
      response.status, httplib::status_message(response.status), response.content_type, response.body.size(),
      kRequestIdHeader, request.request_id);
  for (const auto& [name, value] : response.headers) bytes += fmt::format("{}: {}\r\n", name, value);
  bytes += "\r\n" + response.body;
  return bytes;
}

}  // namespace mesh::net
