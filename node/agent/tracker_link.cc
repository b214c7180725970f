#include "node/agent/tracker_link.h"

#include <utility>

#include "common/identity/signed_message.h"
#include "common/net/message.h"

namespace mesh {

Status TrackerLink::Pin::check(const PublicKey& key) {
  const std::lock_guard lock(mutex_);
  MESH_RETURN_IF_ERROR(compare_locked(key));
  key_ = key;
  return absl::OkStatus();
}

Status TrackerLink::Pin::compare(const PublicKey& key) const {
  const std::lock_guard lock(mutex_);
  return compare_locked(key);
}

Status TrackerLink::Pin::compare_locked(const PublicKey& key) const {
  if (join_key_ && !join_key_->pins(key)) {
    return error(StatusCode::kPermissionDenied,
                 "the program at --tracker has another key than --join-key names");
  }
  if (!key_ || *key_ == key) return absl::OkStatus();
  return error(StatusCode::kPermissionDenied,
               "the tracker's key changed while this node ran; restart the node to trust the new one");
}

std::optional<PublicKey> TrackerLink::Pin::key() const {
  const std::lock_guard lock(mutex_);
  return key_;
}

StatusOr<net::Client*> TrackerLink::client() {
  if (client_ == nullptr) {
    MESH_ASSIGN_OR_RETURN(auto made, net::Client::make(options_.url));
    const std::lock_guard lock(mutex_);
    client_ = std::move(made);
  }
  return client_.get();
}

void TrackerLink::cancel() {
  const std::lock_guard lock(mutex_);
  if (client_ != nullptr) client_->cancel();
}

net::Headers TrackerLink::signed_headers(std::string_view path, std::string_view body) const {
  const MessageSignature signature = sign_message(*options_.identity, path, body);
  net::Headers headers;
  headers.add(kKeyHeader, signature.key_hex);
  headers.add(kSignatureHeader, signature.signature_hex);
  if (options_.join_key) headers.add(kJoinHeader, options_.join_key->prove(body).hex());
  return headers;
}

Status TrackerLink::distrusted(const Status& why, wire::ControlError& refusal) const {
  if (!pin_->key()) refusal = {"signature", std::string(message_of(why)), ""};
  return why;
}

Status TrackerLink::refused(std::string_view route, const net::Reply& reply,
                            wire::ControlError& refusal) const {
  Status status = reply.as_status();
  const auto parsed = wire::parse_control_error(reply.body);
  const auto signer =
      verify_message(route, reply.body, reply.headers.get(kKeyHeader), reply.headers.get(kSignatureHeader));
  if (signer.ok()) {
    if (const Status pinned = pin_->compare(*signer); !pinned.ok()) return distrusted(pinned, refusal);
  } else if (reply.status == 404) {
    return error(StatusCode::kNotFound,
                 "{} answers but is no listener for nodes: --tracker takes the URL of the tracker's "
                 "--mesh-listen (port 8070 unless its owner chose another), not the one for clients",
                 options_.url);
  } else if (pin_->is_set()) {
    return error(status.code(), "an answer came that the tracker did not sign: {}", message_of(status));
  }
  if (parsed.ok()) refusal = *parsed;
  return status;
}

StatusOr<std::string> TrackerLink::call(std::string_view route, const std::string& body, Duration timeout,
                                        wire::ControlError& refusal) {
  MESH_ASSIGN_OR_RETURN(net::Client * client, client());
  net::CallOptions options;
  options.headers = signed_headers(route, body);
  options.timeout = timeout;
  MESH_ASSIGN_OR_RETURN(net::Reply reply, client->post(std::string(route), body, net::kJsonType, options));
  if (!reply.as_status().ok()) return refused(route, reply, refusal);
  MESH_ASSIGN_OR_RETURN(const PublicKey key, verify_message(route, reply.body, reply.headers.get(kKeyHeader),
                                                            reply.headers.get(kSignatureHeader)));
  if (const Status pinned = pin_->check(key); !pinned.ok()) return distrusted(pinned, refusal);
  return std::move(reply.body);
}

StatusOr<std::string> TrackerLink::get(const std::string& path, std::size_t max_bytes) {
  MESH_ASSIGN_OR_RETURN(net::Client * client, client());
  net::CallOptions options;
  options.headers = signed_headers(path, "");
  options.max_response = max_bytes;
  MESH_ASSIGN_OR_RETURN(net::Reply reply, client->get(path, options));
  MESH_RETURN_IF_ERROR(reply.as_status());
  return std::move(reply.body);
}

Status TrackerLink::download(const std::string& path, const net::ByteRange& range,
                             const net::BodySink& sink) {
  MESH_ASSIGN_OR_RETURN(net::Client * client, client());
  net::CallOptions options;
  options.headers = signed_headers(path, "");
  // A link of 64 KiB/s still gets through.
  options.timeout = std::chrono::seconds(30 + static_cast<std::int64_t>(range.size() >> 16));
  options.max_response = range.size();
  MESH_ASSIGN_OR_RETURN(const net::Reply reply, client->download(path, range, sink, options));
  return reply.as_status();
}

std::vector<CheckedDirective> check_directives(const std::vector<wire::SignedDirective>& directives,
                                               const PublicKey& tracker) {
  std::vector<CheckedDirective> checked;
  for (const wire::SignedDirective& one : directives) {
    CheckedDirective result;
    const auto signature = Signature::from_bytes(one.signature);
    const std::string covered = std::string(wire::kDirectiveSignaturePrefix) + one.body;
    auto parsed = wire::parse_directive(one.body);
    if (parsed.ok()) result.directive = *parsed;
    if (!signature || !verify(tracker, covered, *signature)) {
      result.signature = error(StatusCode::kUnauthenticated, "a directive's signature is not the tracker's");
    } else {
      result.signature = parsed.status();
    }
    checked.push_back(std::move(result));
  }
  return checked;
}

}  // namespace mesh
