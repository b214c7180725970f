#include <algorithm>
#include <cstring>
#include <utility>

#include "node/engine/ops/linear.h"
#include "node/engine/ops/panel_layout.h"
#include "node/engine/ops/quantise.h"

namespace mesh::ops {
namespace {
constexpr std::int64_t kPanel = PackedLinear::kPanel;

// One row's codes of a group → a column of the panel's codes.
void scatter_int8(const std::uint8_t* codes, std::int64_t inputs, std::int64_t column, std::byte* to) {
  for (std::int64_t in = 0; in < inputs; ++in) to[in * kPanel + column] = static_cast<std::byte>(codes[in]);
}
void scatter_nf4(const std::uint8_t* codes, std::int64_t inputs, std::int64_t column, std::byte* to) {
  to += column % 16 * 4 + column / 16 * 2;
  for (std::int64_t in = 0; in < inputs; in += 4, to += 64) {
    const std::uint8_t first = codes[in / 2], second = codes[in / 2 + 1];
    to[0] = static_cast<std::byte>(first >> 4 | first << 4);
    to[1] = static_cast<std::byte>(second >> 4 | second << 4);
  }
}
}  // namespace

StatusOr<QuantisedPacker> QuantisedPacker::create(std::int64_t out, std::int64_t in, MatrixFormat format) {
  if (!is_quantised(format) || (format == MatrixFormat::kNf4 && in % 4 != 0)) {
    return error(StatusCode::kInvalidArgument,
                 "cannot pack a quantised [{}, {}] matrix: 4-bit rows must be multiples of 4 long", out, in);
  }
  if (format == MatrixFormat::kFp8) {
    return error(StatusCode::kFailedPrecondition, "the CPU has no kernels for fp8; use --quantization int8");
  }
  QuantisedPacker packer;
  MESH_ASSIGN_OR_RETURN(packer.packed_, PackedLinear::allocate(out, in, format));
  return packer;
}

Status QuantisedPacker::append(const std::uint8_t* codes, const float* scales, std::int64_t rows) {
  MESH_RETURN_IF_ERROR(packed_.check_room(filled_, rows));
  const MatrixFormat format = packed_.format_;
  const std::int64_t group = packed_.group_, groups = packed_.in_ / group;
  const std::int64_t stride = kPanelScales + panel_code_bytes(format, group);
  const std::int64_t row_codes = code_bytes(format, packed_.in_);
  const std::int64_t end = filled_ + rows;
  for (std::int64_t begin = filled_; begin < end;) {
    const std::int64_t panel_end = std::min((begin / kPanel + 1) * kPanel, end);
    std::byte* panel = packed_.weights_.data() + begin / kPanel * packed_.panel_bytes_;
    for (std::int64_t g = 0; g < groups; ++g, panel += stride) {
      for (std::int64_t n = begin; n < panel_end; ++n) {
        const std::int64_t row = n - filled_, column = n % kPanel;
        std::memcpy(panel + column * 4, scales + row * groups + g, sizeof(float));
        const std::uint8_t* from = codes + row * row_codes + code_bytes(format, g * group);
        if (format == MatrixFormat::kInt8) {
          scatter_int8(from, group, column, panel + kPanelScales);
        } else {
          scatter_nf4(from, group, column, panel + kPanelScales);
        }
      }
    }
    begin = panel_end;
  }
  filled_ = end;
  return absl::OkStatus();
}

Status QuantisedPacker::set_bias(std::int64_t first, std::span<const float> values) {
  return packed_.set_bias(first, values);
}

StatusOr<PackedLinear> QuantisedPacker::finish() {
  MESH_RETURN_IF_ERROR(packed_.check_full(filled_));
  filled_ = 0;
  return std::exchange(packed_, PackedLinear());
}

}  // namespace mesh::ops
