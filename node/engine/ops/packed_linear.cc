#include <algorithm>
#include <cstring>

#include "common/base/checked.h"
#include "node/engine/ops/elementwise.h"
#include "node/engine/ops/linear.h"
#include "node/engine/ops/panel_layout.h"
#include "node/engine/ops/quantise.h"

namespace mesh::ops {
namespace {
constexpr std::int64_t kPanel = PackedLinear::kPanel;
constexpr std::int64_t kMostInputs = std::int64_t{1} << 40;
constexpr std::size_t kReadBeyond = 64;  // bytes after the last NF4 panel that kernels may read

// `in` ≤ kMostInputs.
std::int64_t panel_bytes_of(std::int64_t in, MatrixFormat format) {
  if (!is_quantised(format)) return in * kPanel * (format == MatrixFormat::kBf16 ? 2 : 4);
  return in / scale_group(format, in) * kPanelScales + panel_code_bytes(format, in);
}

void quantised_row(const PackedLinear& weight, const std::byte* panel, std::int64_t column, float* out) {
  const std::int64_t group = weight.group();
  const std::int64_t stride = kPanelScales + panel_code_bytes(weight.format(), group);
  for (std::int64_t in = 0; in < weight.in_features(); ++in) {
    const std::byte* at = panel + in / group * stride;
    float scale;
    std::memcpy(&scale, at + column * 4, sizeof(scale));
    const std::byte* codes = at + kPanelScales;
    if (weight.format() == MatrixFormat::kNf4) {
      const Nf4Place place = nf4_place(weight.order(), column, in % group);
      std::uint32_t word;
      std::memcpy(&word, codes + place.word * 4, sizeof(word));
      out[in] = kNf4Values[word >> place.bit & 15] * scale;
      continue;
    }
    const auto code = static_cast<std::uint8_t>(codes[code_place(weight.order(), column, in % group)]);
    out[in] = weight.format() == MatrixFormat::kInt8
                  ? static_cast<float>(static_cast<std::int8_t>(code)) * scale * kInt8Step
                  : fp8_value(code) * scale;
  }
}
}  // namespace

std::optional<std::size_t> PackedLinear::packed_bytes(std::int64_t out, std::int64_t in,
                                                      MatrixFormat format) {
  const auto rounded = checked_add<std::int64_t>(out, kPanel - 1);
  if (!rounded || out < 0 || in < 0 || in > kMostInputs) return std::nullopt;
  if (in == 0) return 0;
  const auto bytes = checked_mul<std::int64_t>(*rounded / kPanel, panel_bytes_of(in, format));
  if (!bytes) return std::nullopt;
  return static_cast<std::size_t>(*bytes);
}

StatusOr<PackedLinear> PackedLinear::allocate(std::int64_t out, std::int64_t in, MatrixFormat format,
                                              const PackOptions& options) {
  const auto bytes = packed_bytes(out, in, format);
  if (out < 1 || in < 1 || !bytes) {
    return error(StatusCode::kInvalidArgument, "cannot pack a [{}, {}] matrix", out, in);
  }
  if (options.order == PanelOrder::kPairs &&
      (format == MatrixFormat::kF32 || in % pairs_multiple(format) != 0)) {
    return error(StatusCode::kInvalidArgument, "rows of {} values cannot be packed in pairs", in);
  }
  PackedLinear packed;
  const std::size_t size = *bytes + (format == MatrixFormat::kNf4 ? kReadBeyond : 0);
  MESH_ASSIGN_OR_RETURN(packed.weights_,
                        options.arena ? options.arena->allocate(size) : AlignedBytes::allocate(size));
  packed.order_ = options.order;
  packed.out_ = out;
  packed.in_ = in;
  packed.format_ = format;
  packed.group_ = is_quantised(format) ? scale_group(format, in) : 0;
  packed.panel_bytes_ = panel_bytes_of(in, format);
  return packed;
}

Status PackedLinear::check_rows(std::int64_t first, std::int64_t rows) const {
  if (first >= 0 && rows >= 0 && rows <= out_ - first) return absl::OkStatus();
  return error(StatusCode::kInvalidArgument, "{} rows do not fit behind {} of {}", rows, first, out_);
}

Status PackedLinear::check_full(std::int64_t filled) const {
  if (filled == out_) return absl::OkStatus();
  return error(StatusCode::kInvalidArgument, "{} of {} rows are missing", out_ - filled, out_);
}

Status PackedLinear::set_bias(std::int64_t first, std::span<const float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  if (first < 0 || count > out_ || first > out_ - count) {
    return error(StatusCode::kInvalidArgument, "bias [{}, {} + {}) lies outside of {} outputs", first, first,
                 count, out_);
  }
  bias_.resize(static_cast<std::size_t>(panels() * kPanel));
  std::copy(values.begin(), values.end(), bias_.begin() + first);
  return absl::OkStatus();
}

void linear_row(const PackedLinear& weight, std::int64_t index, float* out) {
  const std::byte* panel = weight.panel(index / kPanel);
  if (is_quantised(weight.format())) return quantised_row(weight, panel, index % kPanel, out);
  const Element element = weight.format() == MatrixFormat::kBf16 ? Element::kBf16 : Element::kF32;
  const std::int64_t size = element_size(element);
  for (std::int64_t in = 0; in < weight.in_features(); ++in) {
    const std::int64_t place = place_in_panel(weight.order(), weight.format(), index % kPanel, in);
    widen(panel + place * size, element, 1, out + in);
  }
}

}  // namespace mesh::ops
