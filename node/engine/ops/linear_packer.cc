#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>
#include <utility>

#include "node/engine/ops/elementwise.h"
#include "node/engine/ops/linear.h"
#include "node/engine/ops/panel_layout.h"

namespace mesh::ops {
namespace {
constexpr std::int64_t kPanel = PackedLinear::kPanel;

// One value as it lies in the file → as it is stored.
template <class Stored>
Stored converted(const std::byte* value, Element type) {
  float wide;
  if constexpr (std::is_same_v<Stored, Bf16>) {
    if (type == Element::kBf16) {
      Bf16 same;
      std::memcpy(&same, value, sizeof(same));
      return same;
    }
  }
  if (type == Element::kF32) {
    std::memcpy(&wide, value, sizeof(wide));
  } else {
    std::uint16_t bits;
    std::memcpy(&bits, value, sizeof(bits));
    wide = type == Element::kBf16 ? to_float(Bf16{bits}) : half_to_float(bits);
  }
  if constexpr (std::is_same_v<Stored, Bf16>) {
    return to_bf16(wide);
  } else {
    return wide;
  }
}

// A matrix in a file; strides in bytes.
struct Source {
  const std::byte* data;
  Element type;
  std::int64_t out_stride, in_stride;
};

// Copies outputs [first, first + outs) of `ins` inputs into the panels, 256 inputs of one panel at a time, so
// that what is written stays in the nearest cache.
template <class Stored, PanelOrder kOrder>
void scatter(const Source& source, std::int64_t outs, std::int64_t ins, std::int64_t first,
             std::byte* panels) {
  constexpr MatrixFormat kFormat = std::is_same_v<Stored, Bf16> ? MatrixFormat::kBf16 : MatrixFormat::kF32;
  constexpr std::int64_t kInputs = 256;
  for (std::int64_t begin = first; begin < first + outs;) {
    const std::int64_t end = std::min((begin / kPanel + 1) * kPanel, first + outs);
    auto* panel = reinterpret_cast<Stored*>(panels) + begin / kPanel * ins * kPanel;
    for (std::int64_t in0 = 0; in0 < ins; in0 += kInputs) {
      const std::int64_t in_end = std::min(in0 + kInputs, ins);
      for (std::int64_t n = begin; n < end; ++n) {
        const std::byte* from = source.data + (n - first) * source.out_stride + in0 * source.in_stride;
        for (std::int64_t in = in0; in < in_end; ++in, from += source.in_stride) {
          panel[place_in_panel(kOrder, kFormat, n % kPanel, in)] = converted<Stored>(from, source.type);
        }
      }
    }
    begin = end;
  }
}
}  // namespace

StatusOr<LinearPacker> LinearPacker::create(std::int64_t out, std::int64_t in, Element element,
                                            const PackOptions& options) {
  if (element == Element::kF16) return error(StatusCode::kInvalidArgument, "float16 is no stored format");
  LinearPacker packer;
  const MatrixFormat format = element == Element::kBf16 ? MatrixFormat::kBf16 : MatrixFormat::kF32;
  MESH_ASSIGN_OR_RETURN(packer.packed_, PackedLinear::allocate(out, in, format, options));
  return packer;
}

Status LinearPacker::put_rows(std::int64_t first, const void* data, Element type, std::int64_t rows,
                              std::int64_t stride) {
  return put(first, static_cast<const std::byte*>(data), type, stride * element_size(type),
             element_size(type), rows);
}

Status LinearPacker::put_transposed(std::int64_t first, const void* data, Element type, std::int64_t outs,
                                    std::int64_t stride) {
  return put(first, static_cast<const std::byte*>(data), type, element_size(type),
             stride * element_size(type), outs);
}

Status LinearPacker::put(std::int64_t first, const std::byte* data, Element type, std::int64_t out_stride,
                         std::int64_t in_stride, std::int64_t outs) {
  MESH_RETURN_IF_ERROR(packed_.check_rows(first, outs));
  const Source source{data, type, out_stride, in_stride};
  const auto fill = packed_.format_ == MatrixFormat::kF32  ? scatter<float, PanelOrder::kOutputs>
                    : packed_.order_ == PanelOrder::kPairs ? scatter<Bf16, PanelOrder::kPairs>
                                                           : scatter<Bf16, PanelOrder::kOutputs>;
  fill(source, outs, packed_.in_, first, packed_.weights_.data());
  std::atomic_ref(filled_) += outs;
  return absl::OkStatus();
}

Status LinearPacker::set_bias(std::int64_t first, std::span<const float> values) {
  return packed_.set_bias(first, values);
}

StatusOr<PackedLinear> LinearPacker::finish() {
  MESH_RETURN_IF_ERROR(packed_.check_full(filled_));
  filled_ = 0;
  return std::exchange(packed_, PackedLinear());
}

}  // namespace mesh::ops
