// SafeTensors headers: the first byte chooses how much of the file lies behind the input.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/safetensors/header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mesh::safetensors;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::uint64_t file_size = bytes.size() + std::uint64_t{data[0]} * 4;
  const auto header = parse_header(bytes, file_size);
  if (!header.ok()) return 0;
  // What was accepted tiles the file.
  std::uint64_t total = header->data_offset;
  for (const auto& [name, info] : header->tensors) {
    if (info.offset < header->data_offset || info.offset + info.bytes > file_size) std::abort();
    total += info.bytes;
  }
  if (total != file_size) std::abort();
  return 0;
}
