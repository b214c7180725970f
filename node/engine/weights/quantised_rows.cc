#include "node/engine/weights/quantised_rows.h"

#include <algorithm>

#include "node/engine/ops/elementwise.h"
#include "node/engine/ops/quantise.h"

namespace mesh::engine {
namespace {

/// Quantises rows of floats, kQuantisedRows at most, into a loader.
class Quantiser {
 public:
  Quantiser(ops::MatrixFormat format, std::int64_t in, QuantisedLoader& loader)
      : format_(format),
        in_(in),
        loader_(loader),
        floats_(static_cast<std::size_t>(kQuantisedRows * in)),
        codes_(static_cast<std::size_t>(kQuantisedRows * ops::code_bytes(format, in))),
        scales_(static_cast<std::size_t>(kQuantisedRows * (in / ops::scale_group(format, in)))) {}

  float* row(std::int64_t index) { return floats_.data() + index * in_; }
  Status append(std::int64_t rows) {
    const std::int64_t groups = in_ / ops::scale_group(format_, in_);
    for (std::int64_t i = 0; i < rows; ++i) {
      if (!ops::quantise_row(format_, row(i), in_, codes_.data() + i * ops::code_bytes(format_, in_),
                             scales_.data() + i * groups)) {
        return error(StatusCode::kInvalidArgument, "has a weight that is not finite{}",
                     format_ == ops::MatrixFormat::kInt8
                         ? " in half precision, as INT8 needs it; use --quantization bfloat16"
                         : "");
      }
    }
    return loader_.append(codes_.data(), scales_.data(), rows);
  }

 private:
  const ops::MatrixFormat format_;
  const std::int64_t in_;
  QuantisedLoader& loader_;
  std::vector<float> floats_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_;
};

// 0x7f and 0xff.
bool has_no_number(const std::uint8_t* codes, std::int64_t count) {
  bool found = false;
  for (std::int64_t i = 0; i < count; ++i) found |= (codes[i] & 0x7F) == 0x7F;
  return found;
}

}  // namespace

Status quantise_rows(ops::MatrixFormat format, std::string_view bytes, Element element, std::int64_t rows,
                     std::int64_t in, QuantisedLoader& loader) {
  Quantiser quantiser(format, in, loader);
  for (std::int64_t first = 0; first < rows; first += kQuantisedRows) {
    const std::int64_t count = std::min(kQuantisedRows, rows - first);
    ops::widen(bytes.data() + first * in * ops::element_size(element), element, count * in, quantiser.row(0));
    MESH_RETURN_IF_ERROR(quantiser.append(count));
  }
  return absl::OkStatus();
}

Status quantise_transposed(ops::MatrixFormat format, std::string_view bytes, Element element,
                           std::int64_t outs, std::int64_t in, QuantisedLoader& loader) {
  Quantiser quantiser(format, in, loader);
  float values[kQuantisedRows];
  for (std::int64_t first = 0; first < outs; first += kQuantisedRows) {
    const std::int64_t count = std::min(kQuantisedRows, outs - first);
    for (std::int64_t i = 0; i < in; ++i) {
      ops::widen(bytes.data() + (i * outs + first) * ops::element_size(element), element, count, values);
      for (std::int64_t row = 0; row < count; ++row) quantiser.row(row)[i] = values[row];
    }
    MESH_RETURN_IF_ERROR(quantiser.append(count));
  }
  return absl::OkStatus();
}

Status append_stored(ops::MatrixFormat format, std::string_view bytes, const std::vector<float>& scales,
                     std::int64_t in, std::int64_t first, std::int64_t rows, QuantisedLoader& loader) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(bytes.data());
  if (format == ops::MatrixFormat::kInt8) return loader.append(codes, scales.data() + first, rows);
  const std::int64_t group = ops::scale_group(format, in), groups = in / group;
  std::vector<float> spread(static_cast<std::size_t>(kQuantisedRows * groups));
  for (std::int64_t done = 0; done < rows; done += kQuantisedRows) {
    const std::int64_t count = std::min(kQuantisedRows, rows - done);
    for (std::int64_t i = 0; i < count * groups; ++i) {
      const std::int64_t weight = (first + done) * in + i * group;
      spread[static_cast<std::size_t>(i)] = scales[static_cast<std::size_t>(weight / ops::kNf4Block)];
    }
    MESH_RETURN_IF_ERROR(loader.append(codes + done * ops::code_bytes(format, in), spread.data(), count));
  }
  return absl::OkStatus();
}

Status append_fp8(std::string_view bytes, const fp8::Scales& scales, std::int64_t in, std::int64_t first,
                  std::int64_t rows, QuantisedLoader& loader) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(bytes.data());
  if (has_no_number(codes, rows * in)) {
    return error(StatusCode::kInvalidArgument,
                 "has a code that is not a number; the checkpoint is damaged: fetch it again");
  }
  const std::int64_t group = ops::scale_group(ops::MatrixFormat::kFp8, in), groups = in / group;
  std::vector<float> spread(static_cast<std::size_t>(kQuantisedRows * groups));
  for (std::int64_t done = 0; done < rows; done += kQuantisedRows) {
    const std::int64_t count = std::min(kQuantisedRows, rows - done);
    float* to = spread.data();
    for (std::int64_t row = first + done; row < first + done + count; ++row) {
      const float* of_row =
          scales.values.data() + static_cast<std::uint64_t>(row) / scales.rows * scales.a_row;
      for (std::int64_t g = 0; g < groups; ++g)
        *to++ = of_row[scales.a_row == 1 ? 0 : g * group / ops::kFp8Group];
    }
    MESH_RETURN_IF_ERROR(loader.append(codes + done * in, spread.data(), count));
  }
  return absl::OkStatus();
}

}  // namespace mesh::engine
