#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "common/net/limits.h"
#include "common/net/listener.h"

namespace mesh::net {

StatusOr<ListenSocket> ListenSocket::open(std::string_view host_port) {
  ListenSocket result;
  MESH_ASSIGN_OR_RETURN(result.at, HostPort::parse(host_port));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failure =
      ::getaddrinfo(result.at.host.c_str(), std::to_string(result.at.port).c_str(), &hints, &found);
  if (failure != 0) {
    return error(StatusCode::kInvalidArgument, "cannot listen on {}: {}", host_port, ::gai_strerror(failure));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  result.descriptor =
      Descriptor(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, found->ai_protocol));
  const int descriptor = result.descriptor.get();
  const int on = 1;
  if (descriptor >= 0) ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (descriptor < 0 || ::bind(descriptor, found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(descriptor, limits::kListenBacklog) != 0) {
    const int reason = errno;
    const std::string_view fix =
        reason == EADDRINUSE ? ": another program uses it; choose another port, or 0 for a free one" : "";
    return error(StatusCode::kUnavailable, "cannot listen on {}: {}{}", host_port, std::strerror(reason),
                 fix);
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &length);
  result.at.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                     : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return result;
}

}  // namespace mesh::net
