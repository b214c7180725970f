#include "common/net/channel.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace mesh::net {
namespace {

/// The library matches the status line with a recursive expression; it must stay short.
constexpr std::size_t kMaxStatusLine = 512;
constexpr std::size_t kBufferBytes = 16384;

}  // namespace

/// Buffers small reads and writes; sends before it reads.
class Channel::Buffered final : public httplib::Stream {
 public:
  explicit Buffered(Channel& channel) : channel_(channel), input_(kBufferBytes) {}

  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }

  ssize_t read(char* out, std::size_t size) override {
    if (!flush()) return -1;
    if (begin_ == end_) {
      if (size >= kBufferBytes) return receive(out, size);
      const ssize_t count = receive(input_.data(), input_.size());
      if (count <= 0) return count;
      begin_ = 0;
      end_ = static_cast<std::size_t>(count);
    }
    const std::size_t count = std::min(size, end_ - begin_);
    std::memcpy(out, input_.data() + begin_, count);
    begin_ += count;
    return status_line_fits({out, count}) ? static_cast<ssize_t>(count) : -1;
  }

  ssize_t write(const char* bytes, std::size_t size) override {
    const auto count = static_cast<ssize_t>(size);
    if (output_.size() + size <= kBufferBytes) {
      output_.append(bytes, size);
      return count;
    }
    return flush() && send({bytes, size}) ? count : -1;
  }

  bool flush() {
    const bool sent = send(output_);
    output_.clear();
    return sent;
  }
  bool has_leftover() const { return begin_ != end_; }

  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return channel_.socket_.sock; }

 private:
  ssize_t receive(char* out, std::size_t size) {
    const ssize_t count = channel_.transport_->read(out, size, channel_.deadline_);
    if (count > 0) channel_.received_any_ = true;
    if (count < 0) channel_.trouble_ = channel_.transport_->status();
    return count;
  }
  bool send(std::string_view bytes) {
    if (channel_.transport_->write_all(bytes, channel_.deadline_)) return true;
    channel_.trouble_ = channel_.transport_->status();
    return false;
  }
  bool status_line_fits(std::string_view bytes) {
    if (status_line_done_) return true;
    status_line_done_ = bytes.find('\n') != std::string_view::npos;
    status_line_bytes_ += bytes.size();
    if (status_line_done_ || status_line_bytes_ <= kMaxStatusLine) return true;
    channel_.trouble_ = error(StatusCode::kUnavailable, "the server does not speak HTTP");
    return false;
  }

  Channel& channel_;
  std::vector<char> input_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::string output_;
  std::size_t status_line_bytes_ = 0;
  bool status_line_done_ = false;
};

Channel::Channel(const Url& url, ClientOptions options, std::unique_ptr<TlsRoots> roots)
    : httplib::ClientImpl(url.at.host, url.at.port),
      url_(url),
      options_(std::move(options)),
      roots_(std::move(roots)) {
  set_keep_alive(true);
  set_follow_location(false);
  set_url_encode(false);
  set_decompress(false);
}

Channel::~Channel() {
  stop();
}

Status Channel::exchange(httplib::Request& request, httplib::Response& response, TimePoint deadline) {
  deadline_ = deadline;
  trouble_ = absl::OkStatus();
  connected_now_ = false;
  received_any_ = false;
  httplib::Error failure = httplib::Error::Success;
  if (send(request, response, failure)) return absl::OkStatus();
  if (!trouble_.ok()) return trouble_;
  return error(StatusCode::kUnavailable,
               "the server closed the connection before its answer was complete, or the answer is malformed");
}

bool Channel::create_and_connect_socket(Socket& socket, httplib::Error& failure) {
  connected_now_ = true;
  trouble_ = open(socket);
  if (trouble_.ok()) return true;
  failure = httplib::Error::Connection;
  return false;
}

Status Channel::open(Socket& socket) {
  const TimePoint deadline = std::min(deadline_, std::chrono::steady_clock::now() + options_.connect_timeout);
  MESH_ASSIGN_OR_RETURN(const auto addresses, resolve_allowed(url_.at.host, options_.addresses));
  Status last;
  for (const std::string& ip : addresses) {
    const StatusOr<int> connected = Transport::connect(ip, url_.at.port, deadline, cancel_);
    last = connected.status();
    if (!connected.ok()) continue;
    auto transport = std::make_unique<Transport>(*connected, cancel_);
    if (url_.https) last = transport->secure(*roots_, url_.at.host, deadline);
    if (last.ok()) {
      transport_ = std::move(transport);
      socket.sock = *connected;
      return last;
    }
    transport.reset();
    ::close(*connected);
  }
  return with_context(last, fmt::format("cannot connect to {}", url_.at.text()));
}

void Channel::shutdown_ssl(Socket&, bool) {
  transport_.reset();
}

bool Channel::process_socket(const Socket&, std::function<bool(httplib::Stream&)> callback) {
  Buffered stream(*this);
  const bool done = callback(stream);
  // What follows a whole answer was not asked for: the connection is out of step.
  if (done && stream.has_leftover()) stop();
  return done;
}

}  // namespace mesh::net
