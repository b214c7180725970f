#include "common/net/head.h"

#include <algorithm>
#include <charconv>

#include "common/net/error_response.h"
#include "common/net/limits.h"

namespace mesh::net {

std::optional<std::size_t> head_size(std::string_view input) {
  const std::size_t end = input.find("\r\n\r\n");
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
