#include "common/net/server.h"

#include "common/net/listener.h"
#include "common/net/router.h"

namespace mesh::net {

Status DenyAll::admit(Access, Request&) {
  return error(StatusCode::kPermissionDenied, "not allowed");
}
Status DenyAll::admit_body(Access, Request&) {
  return error(StatusCode::kPermissionDenied, "not allowed");
}

StatusOr<std::unique_ptr<Server>> Server::start(ServerOptions options, std::vector<Route> routes,
                                                std::shared_ptr<AccessPolicy> policy) {
  MESH_ASSIGN_OR_RETURN(Router router, Router::make(std::move(routes)));
  MESH_ASSIGN_OR_RETURN(ListenSocket socket, ListenSocket::open(options.listen));
  if (policy == nullptr) policy = std::make_shared<DenyAll>();
  if (options.threads == 0) options.threads = 1;
  const std::size_t long_lived = options.threads > 2 * limits::kReservedThreads
                                     ? options.threads - limits::kReservedThreads
                                     : (options.threads + 1) / 2;
  std::unique_ptr<ExchangeContext> context(new ExchangeContext{
      std::move(options), std::move(router), std::move(policy), LongLivedSlots(long_lived)});
  return Listener::start(std::move(socket), std::move(context));
}

}  // namespace mesh::net
