#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace mesh::net {

/// Bytes [begin, end) of a file.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
  std::uint64_t size() const { return end - begin; }
};

/// A Range header (RFC 9110, 14.2) against a file of `size` bytes. Nothing: serve the whole (no header, other
/// units, malformed, several ranges). kOutOfRange: answer 416.
StatusOr<std::optional<ByteRange>> parse_range(std::string_view header, std::uint64_t size);

/// "bytes=BEGIN-LAST" for a request.
std::string range_header(const ByteRange& range);
/// "bytes BEGIN-LAST/SIZE" for an answer.
std::string content_range_header(const ByteRange& range, std::uint64_t size);

struct ContentRange {
  ByteRange range;
  /// Nothing when the server wrote "*".
  std::optional<std::uint64_t> size;
};
/// A Content-Range header of a 206 answer; nothing when malformed.
std::optional<ContentRange> parse_content_range(std::string_view header);

}  // namespace mesh::net
