#include "node/engine/weights/fp8.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "common/hub/checkpoint.h"
#include "node/engine/ops/elementwise.h"
#include "node/engine/ops/quantise.h"

namespace mesh::engine::fp8 {
namespace {

using safetensors::Dtype;
using Shape = std::vector<std::uint64_t>;

constexpr std::uint64_t kSide = ops::kFp8Group;
constexpr std::string_view kScale = "_scale", kBlockScale = "_scale_inv";
// A larger scale makes infinite weights.
constexpr float kLargestScale = std::numeric_limits<float>::max() / ops::kFp8Largest;

std::uint64_t blocks_of(std::uint64_t size) {
  return size / kSide + (size % kSide == 0 ? 0 : 1);
}
Shape block_shape(std::uint64_t out, std::uint64_t in) {
  return {blocks_of(out), blocks_of(in)};
}

bool scale_fits(const Shape& scale, std::uint64_t out, std::uint64_t in, bool blocks_alone) {
  if (scale == block_shape(out, in)) return true;
  return !blocks_alone && (scale == Shape{out, 1} || scale == Shape{out} || scale == Shape{1} ||
                           scale == Shape{1, 1} || scale.empty());
}

bool scale_dtype_fits(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kBF16 || dtype == Dtype::kF16 || dtype == Dtype::kF8E8M0;
}

/// E8M0: a power of two, 2^(byte − 127); 0xff is not a number.
float power_of_two(std::uint8_t byte) {
  if (byte == 0xFF) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, byte - 127);
}

std::vector<float> widened(std::string_view bytes, Dtype dtype) {
  std::vector<float> values(bytes.size() * 8 / safetensors::dtype_bits(dtype));
  if (dtype == Dtype::kF8E8M0) {
    std::ranges::transform(bytes, values.begin(),
                           [](char byte) { return power_of_two(static_cast<std::uint8_t>(byte)); });
    return values;
  }
  const Element element = dtype == Dtype::kF32    ? Element::kF32
                          : dtype == Dtype::kBF16 ? Element::kBf16
                                                  : Element::kF16;
  ops::widen(bytes.data(), element, static_cast<std::int64_t>(values.size()), values.data());
  return values;
}

}  // namespace

bool is_quantised(const safetensors::TensorInfo& info, Quantization stored) {
  return stored == Quantization::kFp8 && info.dtype == Dtype::kF8E4M3;
}

std::vector<std::string> names_beside(std::string_view weight) {
  return {fmt::format("{}{}", weight, kScale), fmt::format("{}{}", weight, kBlockScale)};
}

bool may_be_left(std::string_view name) {
  constexpr std::string_view kEnds[] = {".input_scale", ".activation_scale", ".k_scale", ".v_scale"};
  return std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

StatusOr<FoundTensor> find(hub::Checkpoint& checkpoint, const std::string& weight, const Shape& shape,
                           bool kept) {
  FoundTensor found;
  MESH_ASSIGN_OR_RETURN(const safetensors::TensorInfo info, checkpoint.info(weight));
  if (kept) {
    found.problem = fmt::format(
        "{} is F8_E4M3 although quantization_config in config.json lists its module as not converted: take "
        "it off that list if it has a scale, or store it as BF16",
        weight);
    return found;
  }
  if (info.shape != shape) {
    found.problem = fmt::format("{} is [{}], needed FP8 codes of a [{}] matrix", weight,
                                fmt::join(info.shape, ", "), fmt::join(shape, ", "));
    return found;
  }
  const bool in_blocks = checkpoint.has(weight + std::string(kBlockScale));
  const std::string name = weight + std::string(in_blocks ? kBlockScale : kScale);
  if (!checkpoint.has(name)) {
    found.problem =
        fmt::format("{}{} (scales of blocks) or {}{} (of rows or the matrix) is missing beside it", weight,
                    kBlockScale, weight, kScale);
    return found;
  }
  MESH_ASSIGN_OR_RETURN(const safetensors::TensorInfo scale, checkpoint.info(name));
  const Shape blocks = block_shape(shape[0], shape[1]);
  if (!scale_fits(scale.shape, shape[0], shape[1], in_blocks) || !scale_dtype_fits(scale.dtype)) {
    const std::string others =
        in_blocks ? std::string() : fmt::format(", [{}, 1], [{}] or [1]", shape[0], shape[0]);
    found.problem = fmt::format("{} is {} [{}], needed F32, BF16, F16 or F8_E8M0 of shape [{}]{}", name,
                                safetensors::dtype_name(scale.dtype), fmt::join(scale.shape, ", "),
                                fmt::join(blocks, ", "), others);
    return found;
  }
  found.tensor = {Quantization::kFp8, Element::kBf16, info.bytes + scale.bytes, {weight, name}};
  return found;
}

StatusOr<Scales> read_scales(hub::Checkpoint& checkpoint, const StoredTensor& tensor, std::uint64_t out,
                             std::uint64_t in) {
  const std::string& name = tensor.names[1];
  MESH_ASSIGN_OR_RETURN(const safetensors::TensorInfo info, checkpoint.info(name));
  MESH_ASSIGN_OR_RETURN(const std::string_view bytes, checkpoint.tensor(name));
  Scales scales{widened(bytes, info.dtype), 1, 1};
  checkpoint.release(bytes);
  for (const float scale : scales.values) {
    if (!(std::abs(scale) <= kLargestScale)) {
      return error(StatusCode::kInvalidArgument,
                   "{} holds {}, no scale of finite weights; the checkpoint is damaged: fetch it again", name,
                   scale);
    }
  }
  if (scales.values.size() == 1) {
    scales.rows = std::max<std::uint64_t>(out, 1);
  } else if (info.shape == block_shape(out, in)) {
    scales.rows = kSide;
    scales.a_row = blocks_of(in);
  }
  return scales;
}

}  // namespace mesh::engine::fp8
