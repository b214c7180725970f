#include "node/engine/weights/quantised_rows.h"

#include <algorithm>
#include <new>

#include "node/engine/ops/elementwise.h"
#include "node/engine/ops/quantise.h"

namespace mesh::engine {
namespace {

template <class T>
T* room(safetensors::ReadBuffer& buffer, std::int64_t count) {
  char* const memory = buffer.room(static_cast<std::uint64_t>(count) * sizeof(T));
  if (memory == nullptr) throw std::bad_alloc();  // which ends the load
  return reinterpret_cast<T*>(memory);
}

/// Quantises rows of floats, kQuantisedRows at a time, into a matrix.
class Quantiser {
 public:
  Quantiser(ops::MatrixFormat format, std::int64_t in, const QuantisedRows& to)
      : format_(format),
        in_(in),
        to_(to),
        values_(room<float>(to.scratch.values, kQuantisedRows * in)),
        codes_(room<std::uint8_t>(to.scratch.codes, kQuantisedRows * ops::code_bytes(format, in))),
        scales_(room<float>(to.scratch.scales, kQuantisedRows * (in / ops::scale_group(format, in)))) {}

  float* row(std::int64_t index) { return values_ + index * in_; }
  Status put(std::int64_t rows) {
    const std::int64_t groups = in_ / ops::scale_group(format_, in_);
    for (std::int64_t i = 0; i < rows; ++i) {
      if (!ops::quantise_row(format_, row(i), in_, codes_ + i * ops::code_bytes(format_, in_),
                             scales_ + i * groups)) {
        return error(StatusCode::kInvalidArgument, "has a weight that is not finite{}",
                     format_ == ops::MatrixFormat::kInt8
                         ? " in half precision, as INT8 needs it; use --quantization bfloat16"
                         : "");
      }
    }
    const Status status = to_.loader.put(to_.first, codes_, scales_, rows);
    to_.first += rows;
    return status;
  }

 private:
  const ops::MatrixFormat format_;
  const std::int64_t in_;
  QuantisedRows to_;
  float* const values_;
  std::uint8_t* const codes_;
  float* const scales_;
};

// 0x7f and 0xff.
bool has_no_number(const std::uint8_t* codes, std::int64_t count) {
  bool found = false;
  for (std::int64_t i = 0; i < count; ++i) found |= (codes[i] & 0x7F) == 0x7F;
  return found;
}

}  // namespace

Status quantise_rows(ops::MatrixFormat format, std::string_view bytes, Element element, std::int64_t rows,
                     std::int64_t in, const QuantisedRows& to) {
  Quantiser quantiser(format, in, to);
  for (std::int64_t first = 0; first < rows; first += kQuantisedRows) {
    const std::int64_t count = std::min(kQuantisedRows, rows - first);
    ops::widen(bytes.data() + first * in * ops::element_size(element), element, count * in, quantiser.row(0));
    MESH_RETURN_IF_ERROR(quantiser.put(count));
  }
  return absl::OkStatus();
}

Status quantise_transposed(ops::MatrixFormat format, std::string_view bytes, Element element,
                           std::int64_t outs, std::int64_t in, const QuantisedRows& to) {
  Quantiser quantiser(format, in, to);
  float values[kQuantisedRows];
  for (std::int64_t first = 0; first < outs; first += kQuantisedRows) {
    const std::int64_t count = std::min(kQuantisedRows, outs - first);
    for (std::int64_t i = 0; i < in; ++i) {
      ops::widen(bytes.data() + (i * outs + first) * ops::element_size(element), element, count, values);
      for (std::int64_t row = 0; row < count; ++row) quantiser.row(row)[i] = values[row];
    }
    MESH_RETURN_IF_ERROR(quantiser.put(count));
  }
  return absl::OkStatus();
}

Status put_stored(ops::MatrixFormat format, std::string_view bytes, const std::vector<float>& scales,
                  std::int64_t in, std::int64_t first, std::int64_t rows, const QuantisedRows& to) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(bytes.data());
  if (format == ops::MatrixFormat::kInt8) return to.loader.put(to.first, codes, scales.data() + first, rows);
  const std::int64_t group = ops::scale_group(format, in), groups = in / group;
  auto* const spread = room<float>(to.scratch.scales, kQuantisedRows * groups);
  for (std::int64_t done = 0; done < rows; done += kQuantisedRows) {
    const std::int64_t count = std::min(kQuantisedRows, rows - done);
    for (std::int64_t i = 0; i < count * groups; ++i) {
      const std::int64_t weight = (first + done) * in + i * group;
      spread[i] = scales[static_cast<std::size_t>(weight / ops::kNf4Block)];
    }
    MESH_RETURN_IF_ERROR(
        to.loader.put(to.first + done, codes + done * ops::code_bytes(format, in), spread, count));
  }
  return absl::OkStatus();
}

Status put_fp8(std::string_view bytes, const fp8::Scales& scales, std::int64_t in, std::int64_t first,
               std::int64_t rows, const QuantisedRows& to) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(bytes.data());
  if (has_no_number(codes, rows * in)) {
    return error(StatusCode::kInvalidArgument,
                 "has a code that is not a number; the checkpoint is damaged: fetch it again");
  }
  const std::int64_t group = ops::scale_group(ops::MatrixFormat::kFp8, in), groups = in / group;
  auto* const spread = room<float>(to.scratch.scales, kQuantisedRows * groups);
  for (std::int64_t done = 0; done < rows; done += kQuantisedRows) {
    const std::int64_t count = std::min(kQuantisedRows, rows - done);
    float* at = spread;
    for (std::int64_t row = first + done; row < first + done + count; ++row) {
      const float* of_row =
          scales.values.data() + static_cast<std::uint64_t>(row) / scales.rows * scales.a_row;
      for (std::int64_t g = 0; g < groups; ++g)
        *at++ = of_row[scales.a_row == 1 ? 0 : g * group / ops::kFp8Group];
    }
    MESH_RETURN_IF_ERROR(to.loader.put(to.first + done, codes + done * in, spread, count));
  }
  return absl::OkStatus();
}

}  // namespace mesh::engine
