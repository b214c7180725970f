#include "common/safetensors/writer.h"

#include <cstdint>
#include <fstream>

#include "common/base/checked.h"
#include "common/json/json.h"

namespace mesh::safetensors {
namespace {

Status check_size(const NewTensor& tensor) {
  std::uint64_t bits = dtype_bits(tensor.dtype);
  for (const std::uint64_t dimension : tensor.shape) {
    const auto product = checked_mul(bits, dimension);
    if (!product)
      return error(StatusCode::kInvalidArgument, "tensor {}: the shape's product overflows", tensor.name);
    bits = *product;
  }
  if (bits % 8 != 0 || bits / 8 != tensor.data.size()) {
    return error(StatusCode::kInvalidArgument, "tensor {}: {} bits by dtype × shape, {} bytes given",
                 tensor.name, bits, tensor.data.size());
  }
  return absl::OkStatus();
}

}  // namespace

Status write_safetensors(const std::filesystem::path& path, const std::vector<NewTensor>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  json::Object header;
  if (!metadata.empty()) {
    json::Object& fields = header["__metadata__"].emplace_object();
    for (const auto& [key, value] : metadata) fields[key] = value;
  }
  std::uint64_t offset = 0;
  for (const NewTensor& tensor : tensors) {
    MESH_RETURN_IF_ERROR(check_size(tensor));
    if (header.contains(tensor.name)) {
      return error(StatusCode::kInvalidArgument, "tensor {} is given twice", tensor.name);
    }
    json::Array shape;
    for (const std::uint64_t dimension : tensor.shape) shape.emplace_back(dimension);
    const std::string_view dtype = dtype_name(tensor.dtype);
    header[tensor.name] = json::Object{{"dtype", boost::json::string_view(dtype.data(), dtype.size())},
                                       {"shape", std::move(shape)},
                                       {"data_offsets", json::Array{offset, offset + tensor.data.size()}}};
    offset += tensor.data.size();
  }
  std::string text = json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the format aligns data to 8 bytes

  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  for (std::size_t i = 0; i < 8; ++i) file.put(static_cast<char>(text.size() >> (8 * i) & 0xff));
  file << text;
  for (const NewTensor& tensor : tensors)
    file.write(tensor.data.data(), static_cast<std::streamsize>(tensor.data.size()));
  file.close();
  if (!file) return error(StatusCode::kUnavailable, "cannot write {}", path.string());
  return absl::OkStatus();
}

}  // namespace mesh::safetensors
