#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/wire/control.h"
#include "common/wire/messages.h"

/// The JSON bodies of a session's control messages (proto-docs/http.md). Readers take any text: they refuse
/// what breaks the limits of messages.h, unknown fields and contradictions, and name the field.
namespace mesh::wire {

inline constexpr std::string_view kOpenRoute = "/mesh/v1/sessions/open";
inline constexpr std::string_view kCloseRoute = "/mesh/v1/sessions/close";
inline constexpr std::string_view kCursorsRoute = "/mesh/v1/sessions/cursors";
inline constexpr std::string_view kRenewRoute = "/mesh/v1/sessions/renew";
inline constexpr std::string_view kReportRoute = "/mesh/v1/sessions/report";

/// An opening on the wire: the secret is sealed to the node's key (common/identity/key_pair.h, seal()), so
/// request.secret is zero here; who reads it unseals `sealed_secret` into it.
struct OpenMessage {
  OpenRequest request;
  std::string sealed_secret;
  Freshness fresh;
};
struct RenewMessage {
  RenewRequest request;
  Freshness fresh;
};

std::string write_open(const OpenRequest& request, std::string_view sealed_secret, const Freshness& fresh);
StatusOr<OpenMessage> read_open(std::string_view body);
std::string write_open_reply(const OpenReply& reply);
StatusOr<OpenReply> read_open_reply(std::string_view body);

std::string write_close(const CloseRequest& request);
StatusOr<CloseRequest> read_close(std::string_view body);

std::string write_cursors(const CursorsRequest& request);
StatusOr<CursorsRequest> read_cursors(std::string_view body);
std::string write_cursors_reply(const CursorsReply& reply);
StatusOr<CursorsReply> read_cursors_reply(std::string_view body);

std::string write_renew(const RenewRequest& request, const Freshness& fresh);
StatusOr<RenewMessage> read_renew(std::string_view body);
std::string write_renew_reply(const RenewReply& reply);
StatusOr<RenewReply> read_renew_reply(std::string_view body);

std::string write_report(const Report& report);
StatusOr<Report> read_report(std::string_view body);

}  // namespace mesh::wire
