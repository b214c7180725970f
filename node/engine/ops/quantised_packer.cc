#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "node/engine/ops/linear.h"
#include "node/engine/ops/panel_layout.h"
#include "node/engine/ops/quantise.h"

namespace mesh::ops {
namespace {
constexpr std::int64_t kPanel = PackedLinear::kPanel;

// One row's codes of a group → a column of the panel's codes.
template <PanelOrder kOrder>
void scatter_bytes(const std::uint8_t* codes, std::int64_t inputs, std::int64_t column, std::byte* to) {
  for (std::int64_t in = 0; in < inputs; ++in)
    to[code_place(kOrder, column, in)] = static_cast<std::byte>(codes[in]);
}
void scatter_nf4(const std::uint8_t* codes, std::int64_t inputs, std::int64_t column, std::byte* to) {
  to += column % 16 * 4 + column / 16 * 2;
  for (std::int64_t in = 0; in < inputs; in += 4, to += 64) {
    const std::uint8_t first = codes[in / 2], second = codes[in / 2 + 1];
    to[0] = static_cast<std::byte>(first >> 4 | first << 4);
    to[1] = static_cast<std::byte>(second >> 4 | second << 4);
  }
}
void scatter_nf4_pairs(const std::uint8_t* codes, std::int64_t inputs, std::int64_t column, std::byte* to) {
  to += column * 4;
  for (std::int64_t in = 0; in < inputs; in += 8, to += 128, codes += 4) {
    // Even weights, in the high halves, go to the low 16 bits.
    to[0] = static_cast<std::byte>(codes[0] >> 4 | (codes[1] & 0xF0));
    to[1] = static_cast<std::byte>(codes[2] >> 4 | (codes[3] & 0xF0));
    to[2] = static_cast<std::byte>((codes[0] & 15) | codes[1] << 4);
    to[3] = static_cast<std::byte>((codes[2] & 15) | codes[3] << 4);
  }
}
using Scatter = void (*)(const std::uint8_t*, std::int64_t, std::int64_t, std::byte*);
Scatter scatter_of(MatrixFormat format, PanelOrder order) {
  if (format == MatrixFormat::kNf4) return order == PanelOrder::kPairs ? scatter_nf4_pairs : scatter_nf4;
  return order == PanelOrder::kPairs ? scatter_bytes<PanelOrder::kPairs>
                                     : scatter_bytes<PanelOrder::kOutputs>;
}
}  // namespace

StatusOr<QuantisedPacker> QuantisedPacker::create(std::int64_t out, std::int64_t in, MatrixFormat format,
                                                  const PackOptions& options) {
  if (!is_quantised(format) || (format == MatrixFormat::kNf4 && in % 4 != 0)) {
    return error(StatusCode::kInvalidArgument,
                 "cannot pack a quantised [{}, {}] matrix: 4-bit rows must be multiples of 4 long", out, in);
  }
  QuantisedPacker packer;
  MESH_ASSIGN_OR_RETURN(packer.packed_, PackedLinear::allocate(out, in, format, options));
  return packer;
}

Status QuantisedPacker::put(std::int64_t first, const std::uint8_t* codes, const float* scales,
                            std::int64_t rows) {
  MESH_RETURN_IF_ERROR(packed_.check_rows(first, rows));
  const MatrixFormat format = packed_.format_;
  const std::int64_t group = packed_.group_, groups = packed_.in_ / group;
  const std::int64_t stride = kPanelScales + panel_code_bytes(format, group);
  const std::int64_t row_codes = code_bytes(format, packed_.in_);
  const Scatter scatter = scatter_of(format, packed_.order_);
  const std::int64_t end = first + rows;
  for (std::int64_t begin = first; begin < end;) {
    const std::int64_t panel_end = std::min((begin / kPanel + 1) * kPanel, end);
    std::byte* panel = packed_.weights_.data() + begin / kPanel * packed_.panel_bytes_;
    for (std::int64_t g = 0; g < groups; ++g, panel += stride) {
      for (std::int64_t n = begin; n < panel_end; ++n) {
        const std::int64_t row = n - first, column = n % kPanel;
        std::memcpy(panel + column * 4, scales + row * groups + g, sizeof(float));
        const std::uint8_t* from = codes + row * row_codes + code_bytes(format, g * group);
        scatter(from, group, column, panel + kPanelScales);
      }
    }
    begin = panel_end;
  }
  std::atomic_ref(filled_) += rows;
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
