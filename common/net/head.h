#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/base/status.h"
#include "common/net/headers.h"

namespace mesh::net {

/// Bytes of the request line and headers at the start of `input`, with the empty line; nothing while that is
/// missing. `searched`: bytes in which it was looked for before.
std::optional<std::size_t> head_size(std::string_view input, std::size_t searched = 0);

/// Whether a complete head is within limits.h: HTTP status 414 for the target, 431 for lines, their number or
/// all of it. 400 for lines that another server would read in another way: a name that is no token (RFC 9110,
/// 5.1), such as one with a blank before its colon, a line folded onto the next, control characters.
Status check_head(std::string_view head);

/// How the body of a request is delimited (RFC 9112, 6.3).
struct BodyFraming {
  bool chunked = false;
  std::uint64_t length = 0;
  bool has_body() const { return chunked || length > 0; }
};
/// Refuses what two servers could read in two ways: several lengths, a length beside chunks, other transfer
/// codings.
StatusOr<BodyFraming> body_framing(const Headers& headers);

}  // namespace mesh::net
