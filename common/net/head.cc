#include "common/net/head.h"

#include <algorithm>
#include <charconv>

#include "common/net/error_response.h"
#include "common/net/limits.h"

namespace mesh::net {
namespace {

constexpr std::string_view kEnd = "\r\n\r\n";

/// RFC 9110, 5.6.2.
bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

bool has_control(std::string_view text) {
  return std::ranges::any_of(text, [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; });
}

Status check_line(std::string_view line, bool is_first) {
  if (!has_control(line)) {
    const std::size_t colon = line.find(':');
    if (is_first || (colon != std::string_view::npos && is_token(line.substr(0, colon))))
      return absl::OkStatus();
  }
  return error(StatusCode::kInvalidArgument, "malformed HTTP {}", is_first ? "request line" : "header");
}

}  // namespace

std::optional<std::size_t> head_size(std::string_view input, std::size_t searched) {
  const std::size_t end = input.find(kEnd, searched - std::min(searched, kEnd.size() - 1));
  if (end == std::string_view::npos) return std::nullopt;
  return end + 4;
}

Status check_head(std::string_view head) {
  if (head.size() > limits::kMaxHeadBytes) {
    return with_http_status(
        error(StatusCode::kInvalidArgument, "headers are longer than {} bytes", limits::kMaxHeadBytes), 431);
  }
  std::size_t lines = 0;
  while (!head.empty()) {
    const std::size_t length = std::min(head.find("\r\n"), head.size());
    if (lines == 0 && length > limits::kMaxTargetBytes) {
      return with_http_status(error(StatusCode::kInvalidArgument, "request line is longer than {} bytes",
                                    limits::kMaxTargetBytes),
                              414);
    }
    if (length > limits::kMaxHeaderLineBytes) {
      return with_http_status(error(StatusCode::kInvalidArgument, "a header is longer than {} bytes",
                                    limits::kMaxHeaderLineBytes),
                              431);
    }
    if (length > 0) MESH_RETURN_IF_ERROR(check_line(head.substr(0, length), lines == 0));
    if (length > 0 && lines++ > limits::kMaxHeaderCount) {
      return with_http_status(
          error(StatusCode::kInvalidArgument, "more than {} headers", limits::kMaxHeaderCount), 431);
    }
    head.remove_prefix(std::min(length + 2, head.size()));
  }
  return absl::OkStatus();
}

StatusOr<BodyFraming> body_framing(const Headers& headers) {
  BodyFraming framing;
  const std::size_t lengths = headers.count("Content-Length");
  const std::size_t codings = headers.count("Transfer-Encoding");
  if (lengths + codings > 1) {
    return error(StatusCode::kInvalidArgument, "several Content-Length or Transfer-Encoding headers");
  }
  if (codings == 1) {
    if (!equal_ignoring_case(headers.get("Transfer-Encoding"), "chunked")) {
      return error(StatusCode::kUnimplemented, "transfer codings other than chunked are not supported");
    }
    framing.chunked = true;
  }
  if (lengths == 1) {
    const std::string_view text = headers.get("Content-Length");
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), framing.length);
    if (failure != std::errc() || end != text.data() + text.size()) {
      return error(StatusCode::kInvalidArgument, "Content-Length should be a number");
    }
  }
  return framing;
}

}  // namespace mesh::net
