#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/checked.h"
#include "node/engine/ops/elementwise.h"
#include "node/engine/ops/linear.h"

namespace mesh::ops {
namespace {
constexpr std::int64_t kPanel = PackedLinear::kPanel;

// Where output `column` of a panel lies within its 32 values.
std::int64_t place(Element element, std::int64_t column) {
  if (element == Element::kF32) return column;
  return column < 16 ? 2 * column : 2 * (column - 16) + 1;
}

Bf16 as_bf16(const std::byte* value, Element type) {
  if (type == Element::kBf16) {
    Bf16 result;
    std::memcpy(&result, value, sizeof(result));
    return result;
  }
  float wide;
  widen(value, type, 1, &wide);
  return to_bf16(wide);
}

// Copies a matrix of `outs` × `ins` values into the panels from output `first` on.
struct Source {
  const std::byte* data;
  Element type;
  std::int64_t out_stride, in_stride;  // bytes
};
void scatter(const Source& source, std::int64_t outs, std::int64_t ins, Element element, std::int64_t first,
             std::byte* panels) {
  const std::int64_t size = element_size(element);
  for (std::int64_t out = 0; out < outs; ++out) {
    const std::int64_t n = first + out;
    std::byte* to = panels + (n / kPanel * ins * kPanel + place(element, n % kPanel)) * size;
    const std::byte* from = source.data + out * source.out_stride;
    for (std::int64_t in = 0; in < ins; ++in, to += kPanel * size, from += source.in_stride) {
      if (element == Element::kBf16) {
        const Bf16 value = as_bf16(from, source.type);
        std::memcpy(to, &value, sizeof(value));
      } else {
        float value;
        widen(from, source.type, 1, &value);
        std::memcpy(to, &value, sizeof(value));
      }
    }
  }
}
}  // namespace

std::optional<std::size_t> PackedLinear::packed_bytes(std::int64_t out, std::int64_t in, Element element) {
  const auto rounded = checked_add<std::int64_t>(out, kPanel - 1);
  if (!rounded || out < 0 || in < 0) return std::nullopt;
  const auto values = checked_mul<std::int64_t>(*rounded / kPanel * kPanel, in);
  if (!values) return std::nullopt;
  const auto bytes = checked_mul<std::int64_t>(*values, element_size(element));
  if (!bytes) return std::nullopt;
  return static_cast<std::size_t>(*bytes);
}

StatusOr<LinearPacker> LinearPacker::create(std::int64_t out, std::int64_t in, Element element) {
  const auto bytes = PackedLinear::packed_bytes(out, in, element);
  if (out < 1 || in < 1 || !bytes || element == Element::kF16) {
    return error(StatusCode::kInvalidArgument, "cannot pack a [{}, {}] matrix", out, in);
  }
  LinearPacker packer;
  MESH_ASSIGN_OR_RETURN(packer.packed_.weights_, AlignedBytes::allocate(*bytes));
  packer.packed_.out_ = out;
  packer.packed_.in_ = in;
  packer.packed_.element_ = element;
  return packer;
}

Status LinearPacker::append_rows(const void* data, Element type, std::int64_t rows, std::int64_t stride) {
  const Source source{static_cast<const std::byte*>(data), type, stride * element_size(type),
                      element_size(type)};
  return append(source.data, type, source.out_stride, source.in_stride, rows);
}

Status LinearPacker::append_transposed(const void* data, Element type, std::int64_t outs,
                                       std::int64_t stride) {
  const Source source{static_cast<const std::byte*>(data), type, element_size(type),
                      stride * element_size(type)};
  return append(source.data, type, source.out_stride, source.in_stride, outs);
}

Status LinearPacker::append(const std::byte* data, Element type, std::int64_t out_stride,
                            std::int64_t in_stride, std::int64_t outs) {
  if (outs < 0 || outs > packed_.out_ - filled_) {
    return error(StatusCode::kInvalidArgument, "{} rows do not fit behind {} of {}", outs, filled_,
                 packed_.out_);
  }
  scatter({data, type, out_stride, in_stride}, outs, packed_.in_, packed_.element_, filled_,
          packed_.weights_.data());
  filled_ += outs;
  return absl::OkStatus();
}

Status LinearPacker::set_bias(std::int64_t first, std::span<const float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  if (first < 0 || count > packed_.out_ || first > packed_.out_ - count) {
    return error(StatusCode::kInvalidArgument, "bias [{}, {} + {}) lies outside of {} outputs", first, first,
                 count, packed_.out_);
  }
  packed_.bias_.resize(static_cast<std::size_t>(packed_.panels() * kPanel));
  std::copy(values.begin(), values.end(), packed_.bias_.begin() + first);
  return absl::OkStatus();
}

StatusOr<PackedLinear> LinearPacker::finish() {
  if (filled_ != packed_.out_) {
    return error(StatusCode::kInvalidArgument, "{} of {} rows are missing", packed_.out_ - filled_,
                 packed_.out_);
  }
  filled_ = 0;
  return std::exchange(packed_, PackedLinear());
}

void linear_row(const PackedLinear& weight, std::int64_t index, float* out) {
  const Element element = weight.element();
  const std::int64_t size = element_size(element);
  const std::byte* from = weight.panel(index / kPanel) + place(element, index % kPanel) * size;
  for (std::int64_t in = 0; in < weight.in_features(); ++in)
    widen(from + in * kPanel * size, element, 1, out + in);
}

}  // namespace mesh::ops
