#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/safetensors/dtype.h"

namespace mesh::safetensors {

/// The format's own bound on the JSON header.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// Bytes at the start of a file that hold the header's length (little endian).
inline constexpr std::uint64_t kLengthBytes = 8;

/// One tensor of a file. `bytes` is the product of `shape` times the element size.
struct TensorInfo {
  Dtype dtype = Dtype::kU8;
  std::vector<std::uint64_t> shape;  // row-major; empty for a scalar
  std::uint64_t offset = 0;          // from the start of the file
  std::uint64_t bytes = 0;

  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

struct Header {
  std::map<std::string, TensorInfo, std::less<>> tensors;
  std::map<std::string, std::string, std::less<>> metadata;  // "__metadata__"
  std::uint64_t data_offset = 0;                             // where the header ends
};

/// Bytes of length field and JSON together, from the first 8 bytes of a file of `file_size` bytes.
/// kInvalidArgument if the file is shorter than it says or the header is over kMaxHeaderBytes.
StatusOr<std::uint64_t> header_bytes(std::string_view first_bytes, std::uint64_t file_size);

/// Parses the start of a file (at least header_bytes() of it). The tensors must tile [data_offset, file_size)
/// with no hole and no overlap, names must be unique, dtype × shape must give each tensor's bytes.
/// kInvalidArgument says which tensor breaks which rule.
StatusOr<Header> parse_header(std::string_view bytes, std::uint64_t file_size);

}  // namespace mesh::safetensors
