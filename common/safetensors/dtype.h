#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace mesh::safetensors {

/// Element types of the format; the names in files are those of dtype_name().
enum class Dtype : std::uint8_t {
  kBool,
  kF4,      // two elements a byte
  kF6E2M3,  // four elements in three bytes
  kF6E3M2,  // four elements in three bytes
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,  // two F32
  kF64,
  kI64,
  kU64,
};

/// "BF16", "F8_E4M3", …
std::string_view dtype_name(Dtype dtype);
std::optional<Dtype> parse_dtype(std::string_view name);
/// Bits of one element: 4 … 64.
std::uint32_t dtype_bits(Dtype dtype);

}  // namespace mesh::safetensors
