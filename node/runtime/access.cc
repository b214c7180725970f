#include "node/runtime/access.h"

#include "common/identity/signed_message.h"
#include "common/net/local_caller.h"

namespace mesh {

Status NodeAccess::admit(net::Access access, net::Request& request) {
  switch (access) {
    case net::Access::kSession:
      pass(faults_, FaultPoint::kBeforeFrameRead);
      return absl::OkStatus();
    case net::Access::kAnyone:
      return absl::OkStatus();
    case net::Access::kNode:
      if (request.headers.get(kSignatureHeader).empty()) {
        return error(StatusCode::kUnauthenticated, "this route takes signed messages only: {} is missing",
                     kSignatureHeader);
      }
      return absl::OkStatus();
    case net::Access::kApiKey:
    case net::Access::kAdmin:
      if (net::is_local_caller(request) || !request.headers.get(kJoinHeader).empty()) return absl::OkStatus();
      return error(
          StatusCode::kUnauthenticated,
          "from another machine, through a proxy or for a web page of elsewhere this route needs {}: the "
          "proof of the join key over the body",
          kJoinHeader);
  }
  return error(StatusCode::kPermissionDenied, "not allowed");
}

Status NodeAccess::admit_body(net::Access access, net::Request& request) {
  if (access == net::Access::kNode) {
    MESH_ASSIGN_OR_RETURN(const PublicKey key,
                          verify_message(request.path, request.body, request.headers.get(kKeyHeader),
                                         request.headers.get(kSignatureHeader)));
    request.principal = node_id_of(key).hex();
    return absl::OkStatus();
  }
  const bool needs_proof = access == net::Access::kApiKey || access == net::Access::kAdmin;
  if (!needs_proof || net::is_local_caller(request)) return absl::OkStatus();
  const auto proof = Mac::parse(request.headers.get(kJoinHeader));
  if (join_key_ && proof && join_key_->verify_proof(request.body, *proof)) return absl::OkStatus();
  return error(StatusCode::kUnauthenticated, "the proof in {} does not fit this node's join key",
               kJoinHeader);
}

}  // namespace mesh
