#include "node/runtime/routes.h"

#include <utility>

#include "common/net/error_response.h"
#include "common/wire/frame.h"
#include "common/wire/session_json.h"
#include "common/wire/token_codec.h"
#include "node/runtime/health.h"

namespace mesh {
namespace {

constexpr std::size_t kMaxOpenBody = std::size_t{64} << 20;  // what its JSON may have
constexpr int kAccepted = 202;
constexpr int kTooMany = 429;

net::Response json_response(std::string body, int status = 200) {
  net::Response response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

Status check_tracker(const RouteContext& context, const net::Request& request) {
  const auto tracker = context.tracker();
  if (!tracker)
    return error(StatusCode::kPermissionDenied, "this node has no tracker, so nobody may open sessions");
  if (request.principal == tracker->hex()) return absl::OkStatus();
  return error(StatusCode::kPermissionDenied, "only the tracker that this node joined may do that");
}

StatusOr<wire::OpenRequest> read_opening(const RouteContext& context, const net::Request& request) {
  MESH_RETURN_IF_ERROR(check_tracker(context, request));
  MESH_ASSIGN_OR_RETURN(wire::OpenMessage message, wire::read_open(request.body));
  MESH_RETURN_IF_ERROR(context.check_fresh(message.fresh));
  MESH_ASSIGN_OR_RETURN(const std::string secret, context.identity->open_sealed(message.sealed_secret));
  const auto parsed = SessionSecret::from_bytes(secret);
  if (!parsed)
    return error(StatusCode::kInvalidArgument, "the sealed secret has {} bytes, not 32", secret.size());
  message.request.secret = *parsed;
  return message.request;
}

net::Response handle_open(Node& node, const RouteContext& context, net::Request& request) {
  const auto opening = read_opening(context, request);
  if (!opening.ok()) return net::error_response(opening.status());
  const wire::OpenReply reply = node.open(*opening);
  return json_response(wire::write_open_reply(reply), reply.code == wire::OpenCode::kNoRoom ? kTooMany : 200);
}

net::Response handle_close(Node& node, const RouteContext& context, net::Request& request) {
  if (const Status allowed = check_tracker(context, request); !allowed.ok())
    return net::error_response(allowed);
  const auto message = wire::read_close(request.body);
  if (!message.ok()) return net::error_response(message.status());
  node.close(*message);
  return json_response("{}");
}

net::Response handle_renew(Node& node, const RouteContext& context, net::Request& request) {
  if (const Status allowed = check_tracker(context, request); !allowed.ok())
    return net::error_response(allowed);
  const auto message = wire::read_renew(request.body);
  if (!message.ok()) return net::error_response(message.status());
  if (const Status fresh = context.check_fresh(message->fresh); !fresh.ok())
    return net::error_response(fresh);
  return json_response(wire::write_renew_reply(node.renew(message->request)));
}

net::Response handle_cursors(Node& node, net::Request& request) {
  const auto message = wire::read_cursors(request.body);
  if (!message.ok()) return net::error_response(message.status());
  return json_response(wire::write_cursors_reply(node.cursors(*message)));
}

/// Checks and decodes one segment; an answer instead when it is refused before it reaches the hop table.
std::optional<wire::SegmentAnswer> check_segment(Node& node, wire::ReceivedSegment& received,
                                                 Arrival& arrival) {
  static thread_local wire::HiddenCodec codec;
  const wire::HopKey hop = received.segment.key();
  const auto keys = node.keys(hop);
  arrival.verified = keys && keys->generation == received.segment.generation;
  if (arrival.verified) {
    wire::SegmentAnswer refusal{hop, received.segment.seq, wire::AnswerCode::kBadMac, {}};
    if (!wire::mac_fits(received, keys->secret)) return refusal;
    refusal.code = wire::AnswerCode::kBadSegment;
    if (!wire::decode_hidden(received, codec).ok()) return refusal;
  }
  arrival.segment = std::move(received.segment);
  return std::nullopt;
}

void tell(NodeObserver* observer, std::size_t body_bytes, const std::vector<wire::SegmentAnswer>& answers) {
  if (observer == nullptr) return;
  observer->on_frame(body_bytes);
  for (const wire::SegmentAnswer& answer : answers) {
    if (answer.code != wire::AnswerCode::kAccepted) observer->on_refused_segment(answer.code);
  }
}

net::Response handle_frame(Node& node, const RouteContext& context, net::Request& request) {
  auto segments = wire::parse_frame(request.body);
  if (!segments.ok()) {
    if (context.observer != nullptr) context.observer->on_malformed_frame();
    return net::error_response(segments.status());
  }
  pass(context.faults, FaultPoint::kAfterFrameRead);
  std::vector<wire::SegmentAnswer> answers(segments->size());
  std::vector<Arrival> arrivals;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < segments->size(); ++i) {
    Arrival arrival;
    if (auto refusal = check_segment(node, (*segments)[i], arrival)) {
      answers[i] = *refusal;
    } else {
      arrivals.push_back(std::move(arrival));
      places.push_back(i);
    }
  }
  const auto accepted = node.accept(std::move(arrivals));
  pass(context.faults, FaultPoint::kBeforeAnswer);
  for (std::size_t i = 0; i < places.size(); ++i) answers[places[i]] = accepted[i];
  tell(context.observer, request.body.size(), answers);
  net::Response response =
      net::Response::binary(wire::encode_segment_answers(answers), wire::kAnswersContentType);
  response.status = kAccepted;
  return response;
}

}  // namespace

std::vector<net::Route> session_routes(Node& node, RouteContext context) {
  using net::Access;
  using net::Request;
  std::vector<net::Route> routes;
  const auto post = [&](std::string_view route, Access access, net::Handler handler, std::size_t max_body) {
    routes.push_back({"POST", std::string(route), access, std::move(handler), max_body, false});
  };
  constexpr std::size_t kSmall = net::limits::kDefaultBodyBytes;
  post(
      wire::kFramesRoute, Access::kSession,
      [&node, context](Request& r) { return handle_frame(node, context, r); }, wire::kMaxFrameBytes);
  post(
      wire::kOpenRoute, Access::kNode, [&node, context](Request& r) { return handle_open(node, context, r); },
      kMaxOpenBody);
  post(
      wire::kCloseRoute, Access::kNode,
      [&node, context](Request& r) { return handle_close(node, context, r); }, kSmall);
  post(
      wire::kRenewRoute, Access::kNode,
      [&node, context](Request& r) { return handle_renew(node, context, r); }, kSmall);
  post(wire::kCursorsRoute, Access::kNode, [&node](Request& r) { return handle_cursors(node, r); }, kSmall);
  const auto health = [&node](Request&) { return net::Response::json(health_of(node)); };
  routes.push_back({"GET", "/health", Access::kAnyone, health, 0, false});
  routes.push_back({"GET", "/mesh/v1/health", Access::kAnyone, health, 0, false});
  return routes;
}

}  // namespace mesh
