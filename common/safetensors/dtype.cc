#include "common/safetensors/dtype.h"

#include <array>

#include "common/base/check.h"

namespace mesh::safetensors {
namespace {

struct Row {
  Dtype dtype;
  std::string_view name;
  std::uint32_t bits;
};

// Names and sizes as in the format's reference implementation.
constexpr std::array kRows = {
    Row{Dtype::kBool, "BOOL", 8},
    Row{Dtype::kF4, "F4", 4},
    Row{Dtype::kF6E2M3, "F6_E2M3", 6},
    Row{Dtype::kF6E3M2, "F6_E3M2", 6},
    Row{Dtype::kU8, "U8", 8},
    Row{Dtype::kI8, "I8", 8},
    Row{Dtype::kF8E5M2, "F8_E5M2", 8},
    Row{Dtype::kF8E4M3, "F8_E4M3", 8},
    Row{Dtype::kF8E8M0, "F8_E8M0", 8},
    Row{Dtype::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    Row{Dtype::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    Row{Dtype::kI16, "I16", 16},
    Row{Dtype::kU16, "U16", 16},
    Row{Dtype::kF16, "F16", 16},
    Row{Dtype::kBF16, "BF16", 16},
    Row{Dtype::kI32, "I32", 32},
    Row{Dtype::kU32, "U32", 32},
    Row{Dtype::kF32, "F32", 32},
    Row{Dtype::kC64, "C64", 64},
    Row{Dtype::kF64, "F64", 64},
    Row{Dtype::kI64, "I64", 64},
    Row{Dtype::kU64, "U64", 64},
};

const Row& row(Dtype dtype) {
  for (const Row& candidate : kRows) {
    if (candidate.dtype == dtype) return candidate;
  }
  check_failed("a row for every dtype", __FILE__, __LINE__);
}

}  // namespace

std::string_view dtype_name(Dtype dtype) {
  return row(dtype).name;
}

std::uint32_t dtype_bits(Dtype dtype) {
  return row(dtype).bits;
}

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (const Row& candidate : kRows) {
    if (candidate.name == name) return candidate.dtype;
  }
  return std::nullopt;
}

}  // namespace mesh::safetensors
