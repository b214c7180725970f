#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "node/engine/ops/aligned_bytes.h"
#include "node/engine/ops/backend.h"
#include "node/engine/ops/page_arena.h"
#include "node/engine/ops/panel_layout.h"

namespace mesh::ops {

/// How a matrix is packed: for CpuBackend::order_of(); kPairs needs rows of pairs_multiple() values. Its
/// memory comes from `arena`, if there is one.
struct PackOptions {
  PanelOrder order = PanelOrder::kOutputs;
  std::shared_ptr<PageArena> arena;
};

/// A weight [out, in] (y = x·Wᵀ + bias) as the kernels read it: panels of 32 outputs; the last panel is
/// padded with zeros. Immutable once packed. Products in float32 read panels in the order kOutputs:
/// - kF32: for every input its 32 weights side by side;
/// - kBf16: the same in the order output 0, 16, 1, 17, …, so that one load and two cheap operations give two
///   runs of 16 floats;
/// - kInt8: 32 scales (float32), then for every input 32 codes; kFp8: the same for every group of inputs;
/// - kNf4: for every group of inputs 32 scales, then for every 4 of its inputs 16 words of 32 bits: bits
///   4i … of word j are the code of input i of output j, bits 16 + 4i … that of output 16 + j. The kernels
///   read up to 3 bytes beyond the last.
/// Products of rounded inputs read the order kPairs, two inputs of an output side by side; scales lie as
/// above:
/// - kBf16: for every two inputs 32 words of 32 bits, the first input's weight in the low half;
/// - kInt8, kFp8: for every two inputs 32 times the codes of both;
/// - kNf4: for every 8 inputs 32 words: bits 4i … are the code of input 2i, bits 16 + 4i … of input 2i + 1.
class PackedLinear {
 public:
  static constexpr std::int64_t kPanel = 32;

  PackedLinear() = default;
  std::int64_t out_features() const { return out_; }
  std::int64_t in_features() const { return in_; }
  MatrixFormat format() const { return format_; }
  PanelOrder order() const { return order_; }
  std::int64_t group() const { return group_; }  ///< inputs that share a scale; 0 when not quantised
  const std::byte* panel(std::int64_t index) const { return weights_.data() + index * panel_bytes(); }
  std::int64_t panels() const { return (out_ + kPanel - 1) / kPanel; }
  std::int64_t panel_bytes() const { return panel_bytes_; }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }  ///< [panels · 32] or null
  std::size_t bytes() const {
    return static_cast<std::size_t>(panels() * panel_bytes_) + bias_.size() * sizeof(float);
  }

  /// What bytes() will be, without the bias; nothing on overflow.
  static std::optional<std::size_t> packed_bytes(std::int64_t out, std::int64_t in, MatrixFormat format);

 private:
  friend class LinearPacker;
  friend class QuantisedPacker;
  /// Zeroed; kInvalidArgument for sizes < 1, overflow or rows that do not fit the order; kResourceExhausted
  /// without memory.
  static StatusOr<PackedLinear> allocate(std::int64_t out, std::int64_t in, MatrixFormat format,
                                         const PackOptions& options);
  Status set_bias(std::int64_t first, std::span<const float> values);
  // What both packers check: rows [first, first + rows) are some of it; at the end all are filled.
  Status check_rows(std::int64_t first, std::int64_t rows) const;
  Status check_full(std::int64_t filled) const;

  std::int64_t out_ = 0;
  std::int64_t in_ = 0;
  MatrixFormat format_ = MatrixFormat::kF32;
  PanelOrder order_ = PanelOrder::kOutputs;
  std::int64_t group_ = 0;
  std::int64_t panel_bytes_ = 0;
  AlignedBytes weights_;
  std::vector<float> bias_;
};

/// Fills a PackedLinear piece by piece, so that the source's pages can be released in between, and several
/// matrices with the same input (q, k, v; gate, up) become one. Float32 or float16 sources are rounded to
/// nearest even when the storage is bfloat16. For loader threads: needs no backend; several may put rows of
/// one matrix at a time, each row once.
class LinearPacker {
 public:
  /// `element`: kF32 or kBf16. kInvalidArgument for sizes < 1 or overflow, kResourceExhausted without memory.
  static StatusOr<LinearPacker> create(std::int64_t out, std::int64_t in, Element element,
                                       const PackOptions& options = {});

  /// Output rows [first, first + rows) ← `rows` rows of `in` values each, `stride` values apart. `data` need
  /// not be aligned. kInvalidArgument for rows outside of the matrix.
  Status put_rows(std::int64_t first, const void* data, Element type, std::int64_t rows, std::int64_t stride);
  /// The same from a source that lies [in, outs] (GPT-2's Conv1D): `outs` output rows, `stride` values
  /// between consecutive inputs.
  Status put_transposed(std::int64_t first, const void* data, Element type, std::int64_t outs,
                        std::int64_t stride);
  /// Behind the rows that are there.
  Status append_rows(const void* data, Element type, std::int64_t rows, std::int64_t stride) {
    return put_rows(filled_, data, type, rows, stride);
  }
  Status append_transposed(const void* data, Element type, std::int64_t outs, std::int64_t stride) {
    return put_transposed(filled_, data, type, outs, stride);
  }
  /// Sets bias[first, first + values.size()); outputs that never get one have 0.
  Status set_bias(std::int64_t first, std::span<const float> values);
  /// kInvalidArgument when rows are missing. The packer is empty afterwards.
  StatusOr<PackedLinear> finish();

 private:
  LinearPacker() = default;
  Status put(std::int64_t first, const std::byte* data, Element type, std::int64_t out_stride,
             std::int64_t in_stride, std::int64_t outs);

  PackedLinear packed_;
  std::int64_t filled_ = 0;  // rows; counted atomically
};

/// Fills a PackedLinear of a quantised format with rows of codes and scales (quantise.h). For loader
/// threads, as LinearPacker.
class QuantisedPacker {
 public:
  /// kNf4: `in` must be a multiple of 4. Else the errors of LinearPacker::create.
  static StatusOr<QuantisedPacker> create(std::int64_t out, std::int64_t in, MatrixFormat format,
                                          const PackOptions& options = {});

  /// Output rows [first, first + rows) ← `codes` [rows, code_bytes], `scales` [rows, in / scale_group].
  /// kInvalidArgument for rows outside of the matrix.
  Status put(std::int64_t first, const std::uint8_t* codes, const float* scales, std::int64_t rows);
  /// Behind the rows that are there.
  Status append(const std::uint8_t* codes, const float* scales, std::int64_t rows) {
    return put(filled_, codes, scales, rows);
  }
  Status set_bias(std::int64_t first, std::span<const float> values);  ///< as LinearPacker's
  StatusOr<PackedLinear> finish();                                     ///< as LinearPacker's

 private:
  QuantisedPacker() = default;

  PackedLinear packed_;
  std::int64_t filled_ = 0;  // rows; counted atomically
};

enum class Store : std::uint8_t { kAssign, kAdd };

/// y[m] (+)= W·x[m] + bias for every row; x [M, in], y [M, out], M ≥ 0; x and y must not overlap. Every
/// output is a sum over chains of 256 inputs (kAdd: added to the old y): it depends on its own row alone, bit
/// for bit. In the order kOutputs a chain is one of float32 fused multiply-adds in ascending order; quantised
/// weights: a chain ends with its group of inputs, too, and its sum of x · code is multiplied by the scale
/// once. In the order kPairs x is rounded first (rounded_inputs.h); the sums of INT8 and NF4 have the same
/// bits on every path.
void linear(CpuBackend& backend, const PackedLinear& weight, ConstMatrix x, Matrix y,
            Store store = Store::kAssign);

/// Row `index` of the weight as floats: out [in]. Serves as embedding row when the head is tied.
void linear_row(const PackedLinear& weight, std::int64_t index, float* out);

}  // namespace mesh::ops
