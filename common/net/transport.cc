#include "common/net/transport.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "common/net/address.h"

namespace mesh::net {
namespace {

/// OK when `events` came on `socket`.
Status wait_for(int socket, short events, TimePoint deadline, const CancelSignal& cancel) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return error(StatusCode::kDeadlineExceeded, "timed out");
    std::array<pollfd, 2> entries{{{socket, events, 0}, {cancel.descriptor(), POLLIN, 0}}};
    const int ready =
        ::poll(entries.data(), entries.size(), static_cast<int>(std::min<long long>(left, 60'000)));
    if (cancel.raised()) return error(StatusCode::kCancelled, "cancelled");
    if (ready > 0 && entries[0].revents != 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return error(StatusCode::kUnavailable, "poll: {}", std::strerror(errno));
  }
}

std::string tls_error() {
  const unsigned long code = ERR_get_error();
  if (code == 0) return "connection closed";
  std::array<char, 256> text;
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

}  // namespace

CancelSignal::CancelSignal() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
CancelSignal::~CancelSignal() {
  ::close(descriptor_);
}

void CancelSignal::raise() {
  raised_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(descriptor_, &one, sizeof one);
}

void CancelSignal::clear() {
  raised_ = false;
  std::uint64_t ignored;
  [[maybe_unused]] const ssize_t got = ::read(descriptor_, &ignored, sizeof ignored);
}

StatusOr<std::unique_ptr<TlsRoots>> TlsRoots::load(const std::string& ca_file) {
  // OpenSSL cannot ask for errors instead of signals write by write.
  std::signal(SIGPIPE, SIG_IGN);
  std::unique_ptr<TlsRoots> roots(new TlsRoots(SSL_CTX_new(TLS_client_method())));
  if (roots->context_ == nullptr) return error(StatusCode::kInternal, "TLS: {}", tls_error());
  SSL_CTX_set_min_proto_version(roots->context_, TLS1_2_VERSION);
  SSL_CTX_set_verify(roots->context_, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(roots->context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  const int loaded = ca_file.empty()
                         ? SSL_CTX_set_default_verify_paths(roots->context_)
                         : SSL_CTX_load_verify_locations(roots->context_, ca_file.c_str(), nullptr);
  if (loaded != 1) {
    return error(StatusCode::kFailedPrecondition, "cannot read trusted certificates from {}: {}",
                 ca_file.empty() ? "the system's store" : ca_file, tls_error());
  }
  return roots;
}

TlsRoots::~TlsRoots() {
  SSL_CTX_free(context_);
}

StatusOr<int> Transport::connect(const std::string& ip, int port, TimePoint deadline,
                                 const CancelSignal& cancel) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(ip.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return error(StatusCode::kInvalidArgument, "{} is not an IP address", ip);
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  const int socket = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0)
    return error(StatusCode::kResourceExhausted, "cannot make a socket: {}", std::strerror(errno));
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  Status status;
  if (::connect(socket, found->ai_addr, found->ai_addrlen) != 0) {
    status = errno == EINPROGRESS ? wait_for(socket, POLLOUT, deadline, cancel)
                                  : error(StatusCode::kUnavailable, "{}", std::strerror(errno));
    int failure = 0;
    socklen_t length = sizeof failure;
    if (status.ok()) ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &failure, &length);
    if (failure != 0) status = error(StatusCode::kUnavailable, "{}", std::strerror(failure));
  }
  if (status.ok()) return socket;
  ::close(socket);
  return status;
}

Transport::~Transport() {
  if (ssl_ == nullptr) return;
  if (status_.ok()) SSL_shutdown(ssl_);
  SSL_free(ssl_);
}

bool Transport::wait(short events, TimePoint deadline) {
  status_ = wait_for(socket_, events, deadline, cancel_);
  return status_.ok();
}

bool Transport::wait_for_tls(int result, TimePoint deadline) {
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return wait(POLLIN, deadline);
    case SSL_ERROR_WANT_WRITE:
      return wait(POLLOUT, deadline);
    default:
      status_ = error(StatusCode::kUnavailable, "TLS: {}", tls_error());
      return false;
  }
}

Status Transport::secure(const TlsRoots& roots, const std::string& host, TimePoint deadline) {
  ssl_ = SSL_new(roots.context());
  if (ssl_ == nullptr) return error(StatusCode::kInternal, "TLS: {}", tls_error());
  SSL_set_fd(ssl_, socket_);
  if (classify_address(host).ok()) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_), host.c_str());
  } else {
    SSL_set1_host(ssl_, host.c_str());
    SSL_set_tlsext_host_name(ssl_, host.c_str());
  }
  while (true) {
    ERR_clear_error();
    const int result = SSL_connect(ssl_);
    if (result == 1) return absl::OkStatus();
    const long verdict = SSL_get_verify_result(ssl_);
    if (!wait_for_tls(result, deadline)) {
      if (verdict != X509_V_OK) {
        status_ = error(StatusCode::kUnavailable, "TLS certificate of {}: {}", host,
                        X509_verify_cert_error_string(verdict));
      }
      return status_;
    }
  }
}

ssize_t Transport::read(char* out, std::size_t size, TimePoint deadline) {
  const int chunk = static_cast<int>(std::min<std::size_t>(size, 1 << 30));
  while (true) {
    if (ssl_ != nullptr) {
      ERR_clear_error();
      const int count = SSL_read(ssl_, out, chunk);
      if (count > 0) return count;
      if (SSL_get_error(ssl_, count) == SSL_ERROR_ZERO_RETURN) return 0;
      if (!wait_for_tls(count, deadline)) return -1;
      continue;
    }
    const ssize_t count = ::recv(socket_, out, size, MSG_DONTWAIT);
    if (count >= 0) return count;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      status_ = error(StatusCode::kUnavailable, "{}", std::strerror(errno));
      return -1;
    }
    if (!wait(POLLIN, deadline)) return -1;
  }
}

bool Transport::write_all(std::string_view bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    if (ssl_ != nullptr) {
      ERR_clear_error();
      const int count =
          SSL_write(ssl_, bytes.data(), static_cast<int>(std::min<std::size_t>(bytes.size(), 1 << 30)));
      if (count > 0) {
        bytes.remove_prefix(static_cast<std::size_t>(count));
      } else if (!wait_for_tls(count, deadline)) {
        return false;
      }
      continue;
    }
    const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait(POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      status_ = error(StatusCode::kUnavailable, "{}", std::strerror(errno));
      return false;
    }
  }
  return true;
}

}  // namespace mesh::net
