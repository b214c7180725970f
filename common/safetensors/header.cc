#include "common/safetensors/header.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/checked.h"
#include "common/base/printable.h"
#include "common/json/view.h"

namespace mesh::safetensors {
namespace {

constexpr std::string_view kMetadata = "__metadata__";
// About nine values a tensor: room for 450,000 tensors in one file, and a bound on what hostile text makes us
// allocate.
constexpr json::Limits kLimits = {
    .max_bytes = kMaxHeaderBytes, .max_depth = 4, .max_values = std::size_t{4} << 20};

template <class... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return error(StatusCode::kInvalidArgument, "SafeTensors header: {}",
               fmt::format(format, std::forward<Args>(args)...));
}

/// Bytes of `shape` elements of `dtype`; nothing on overflow or when the last byte is not full.
std::optional<std::uint64_t> byte_size(Dtype dtype, const std::vector<std::uint64_t>& shape) {
  std::uint64_t elements = 1;
  for (const std::uint64_t dimension : shape) {
    const auto product = checked_mul(elements, dimension);
    if (!product) return std::nullopt;
    elements = *product;
  }
  const auto bits = checked_mul<std::uint64_t>(elements, dtype_bits(dtype));
  if (!bits || *bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

StatusOr<TensorInfo> parse_tensor(std::string_view name, const json::View& view, std::uint64_t data_offset,
                                  std::uint64_t data_bytes) {
  TensorInfo info;
  MESH_ASSIGN_OR_RETURN(const std::string dtype, view.get<std::string>("dtype"));
  const auto known = parse_dtype(dtype);
  if (!known) return invalid("tensor {}: unknown dtype {}", printable(name), printable(dtype));
  info.dtype = *known;
  MESH_ASSIGN_OR_RETURN(info.shape, view.get_list<std::uint64_t>("shape"));
  MESH_ASSIGN_OR_RETURN(const auto offsets, view.get_list<std::uint64_t>("data_offsets"));
  if (offsets.size() != 2) return invalid("tensor {}: data_offsets needs two numbers", printable(name));
  const auto [begin, end] = std::pair(offsets[0], offsets[1]);
  if (begin > end || end > data_bytes) {
    return invalid("tensor {}: data_offsets [{}, {}) lie outside the {} bytes of data", printable(name),
                   begin, end, data_bytes);
  }
  info.offset = data_offset + begin;
  info.bytes = end - begin;
  const auto bytes = byte_size(info.dtype, info.shape);
  if (!bytes) return invalid("tensor {}: dtype × shape is no possible size", printable(name));
  if (*bytes != info.bytes) {
    return invalid("tensor {}: dtype × shape is {} bytes, data_offsets give {}", printable(name), *bytes,
                   info.bytes);
  }
  return info;
}

/// The tensors must tile the data section: no hole, no overlap.
Status check_tiling(const Header& header, std::uint64_t file_size) {
  using Entry = std::pair<std::string_view, const TensorInfo*>;
  std::vector<Entry> order;
  order.reserve(header.tensors.size());
  for (const auto& [name, info] : header.tensors) order.emplace_back(name, &info);
  std::sort(order.begin(), order.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.second->offset, a.second->bytes) < std::pair(b.second->offset, b.second->bytes);
  });
  std::uint64_t end = header.data_offset;
  for (const auto& [name, info] : order) {
    if (info->offset < end) return invalid("tensor {} overlaps the one before it", printable(name));
    if (info->offset > end) {
      return invalid("{} bytes before tensor {} belong to no tensor", info->offset - end, printable(name));
    }
    end = info->offset + info->bytes;
  }
  if (end != file_size) return invalid("{} bytes at the file's end belong to no tensor", file_size - end);
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::uint64_t> header_bytes(std::string_view first_bytes, std::uint64_t file_size) {
  if (file_size < kLengthBytes || first_bytes.size() < kLengthBytes) {
    return invalid("the file has {} bytes, fewer than the length field's 8", file_size);
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(first_bytes[i])} << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    return invalid("a length of {} bytes is over the limit of {}; is this a SafeTensors file?", length,
                   kMaxHeaderBytes);
  }
  if (length > file_size - kLengthBytes) {
    return invalid("a length of {} bytes does not fit in the file's {}; the file is cut short", length,
                   file_size);
  }
  return kLengthBytes + length;
}

StatusOr<Header> parse_header(std::string_view bytes, std::uint64_t file_size) {
  MESH_ASSIGN_OR_RETURN(const std::uint64_t prefix, header_bytes(bytes, file_size));
  if (bytes.size() < prefix) return invalid("{} bytes given, {} needed", bytes.size(), prefix);
  const std::string_view text = bytes.substr(kLengthBytes, prefix - kLengthBytes);
  if (text.empty() || text.front() != '{') return invalid("the JSON does not begin with '{{'");

  const StatusOr<json::Value> parsed = json::parse(text, kLimits);
  if (!parsed.ok()) return with_context(parsed.status(), "SafeTensors header");
  Header header;
  header.data_offset = prefix;
  for (const auto& [key, value] : parsed->as_object()) {
    const std::string_view name(key.data(), key.size());
    const json::View view(value, printable(name));
    if (name == kMetadata) {
      MESH_ASSIGN_OR_RETURN(const json::Object metadata, view.as<json::Object>());
      for (const auto& [field, text_value] : metadata) {
        MESH_ASSIGN_OR_RETURN(std::string content, view.get<std::string>({field.data(), field.size()}));
        header.metadata.emplace(std::string(field.data(), field.size()), std::move(content));
      }
      continue;
    }
    StatusOr<TensorInfo> info = parse_tensor(name, view, prefix, file_size - prefix);
    if (!info.ok()) return info.status();
    header.tensors.emplace(std::string(name), *std::move(info));
  }
  MESH_RETURN_IF_ERROR(check_tiling(header, file_size));
  return header;
}

}  // namespace mesh::safetensors
