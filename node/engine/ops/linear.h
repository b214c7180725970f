#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "node/engine/ops/aligned_bytes.h"
#include "node/engine/ops/backend.h"

namespace mesh::ops {

/// A weight [out, in] (y = x·Wᵀ + bias) as the kernels read it: panels of 32 outputs, in each panel for every
/// input the 32 weights side by side; the last panel is padded with zeros. In bfloat16 the 32 are stored as
/// output 0, 16, 1, 17, …, so that one load and two cheap operations give two runs of 16 floats. Immutable
/// once packed.
class PackedLinear {
 public:
  static constexpr std::int64_t kPanel = 32;

  PackedLinear() = default;
  std::int64_t out_features() const { return out_; }
  std::int64_t in_features() const { return in_; }
  Element element() const { return element_; }  ///< kF32 or kBf16
  const std::byte* panel(std::int64_t index) const { return weights_.data() + index * panel_bytes(); }
  std::int64_t panels() const { return (out_ + kPanel - 1) / kPanel; }
  std::int64_t panel_bytes() const { return in_ * kPanel * element_size(element_); }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }  ///< [panels · 32] or null
  std::size_t bytes() const { return weights_.size() + bias_.size() * sizeof(float); }

  /// What bytes() will be, without the bias; nothing on overflow.
  static std::optional<std::size_t> packed_bytes(std::int64_t out, std::int64_t in, Element element);

 private:
  friend class LinearPacker;
  std::int64_t out_ = 0;
  std::int64_t in_ = 0;
  Element element_ = Element::kF32;
  AlignedBytes weights_;
  std::vector<float> bias_;
};

/// Fills a PackedLinear piece by piece, so that the source's pages can be released in between, and several
/// matrices with the same input (q, k, v; gate, up) become one. Float32 or float16 sources are rounded to
/// nearest even when the storage is bfloat16. For loader threads: needs no backend.
class LinearPacker {
 public:
  /// `element`: kF32 or kBf16. kInvalidArgument for sizes < 1 or overflow, kResourceExhausted without memory.
  static StatusOr<LinearPacker> create(std::int64_t out, std::int64_t in, Element element);

  /// Appends `rows` output rows of `in` values each, `stride` values apart. `data` need not be aligned.
  /// kInvalidArgument when more rows come than were announced.
  Status append_rows(const void* data, Element type, std::int64_t rows, std::int64_t stride);
  /// The same from a source that lies [in, outs] (GPT-2's Conv1D): `outs` output rows, `stride` values
  /// between consecutive inputs.
  Status append_transposed(const void* data, Element type, std::int64_t outs, std::int64_t stride);
  /// Sets bias[first, first + values.size()); outputs that never get one have 0.
  Status set_bias(std::int64_t first, std::span<const float> values);
  /// kInvalidArgument when rows are missing. The packer is empty afterwards.
  StatusOr<PackedLinear> finish();

 private:
  LinearPacker() = default;
  Status append(const std::byte* data, Element type, std::int64_t out_stride, std::int64_t in_stride,
                std::int64_t outs);

  PackedLinear packed_;
  std::int64_t filled_ = 0;
};

enum class Store : std::uint8_t { kAssign, kAdd };

/// y[m] (+)= W·x[m] + bias for every row; x [M, in], y [M, out], M ≥ 0; x and y must not overlap. Every
/// output is a sum over blocks of 256 inputs, each block a chain of float32 fused multiply-adds in ascending
/// order (kAdd: added to the old y): it depends on its own row alone, bit for bit.
void linear(CpuBackend& backend, const PackedLinear& weight, ConstMatrix x, Matrix y,
            Store store = Store::kAssign);

/// Row `index` of the weight as floats: out [in]. Serves as embedding row when the head is tied.
void linear_row(const PackedLinear& weight, std::int64_t index, float* out);

}  // namespace mesh::ops
