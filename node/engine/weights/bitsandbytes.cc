#include "node/engine/weights/bitsandbytes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/hub/checkpoint.h"
#include "common/json/view.h"
#include "node/engine/ops/quantise.h"

namespace mesh::engine::bitsandbytes {
namespace {

using safetensors::Dtype;

constexpr std::uint64_t kBlock = ops::kNf4Block;
constexpr std::uint64_t kNestedBlock = 256;
/// A state is a few lines of JSON.
constexpr std::uint64_t kMaxStateBytes = std::uint64_t{64} << 10;

std::uint64_t blocks_of(std::uint64_t count, std::uint64_t size) {
  return count / size + (count % size == 0 ? 0 : 1);
}

std::string scales_name(std::string_view weight) {  // "X.weight" → "X.SCB"
  return std::string(weight.substr(0, weight.rfind('.'))) + ".SCB";
}
std::string part(std::string_view weight, std::string_view name) {
  return fmt::format("{}.{}", weight, name);
}
constexpr std::string_view kState = "quant_state.bitsandbytes__nf4";

/// A tensor beside the weight, with what it must be.
struct Needed {
  std::string name;
  Dtype dtype;
  std::uint64_t values;  // 0: any number
};

std::vector<Needed> needed_beside(const std::string& weight, Quantization stored, std::uint64_t out,
                                  std::uint64_t values, bool nested) {
  if (stored == Quantization::kInt8) return {{scales_name(weight), Dtype::kF32, out}};
  const std::uint64_t blocks = blocks_of(values, kBlock);
  std::vector<Needed> list = {{part(weight, "absmax"), nested ? Dtype::kU8 : Dtype::kF32, blocks},
                              {part(weight, "quant_map"), Dtype::kF32, 16},
                              {part(weight, kState), Dtype::kU8, 0}};
  if (nested) {
    list.push_back({part(weight, "nested_absmax"), Dtype::kF32, blocks_of(blocks, kNestedBlock)});
    list.push_back({part(weight, "nested_quant_map"), Dtype::kF32, 256});
  }
  return list;
}

StatusOr<std::vector<float>> floats(hub::Checkpoint& checkpoint, const std::string& name) {
  MESH_ASSIGN_OR_RETURN(const std::string_view bytes, checkpoint.tensor(name));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  checkpoint.release(bytes);
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
    return error(StatusCode::kInvalidArgument, "{} has values that are not finite", name);
  return values;
}

struct State {
  float nested_offset = 0;
};

StatusOr<State> read_state(hub::Checkpoint& checkpoint, const std::string& name, std::uint64_t out,
                           std::uint64_t in, bool nested) {
  MESH_ASSIGN_OR_RETURN(const safetensors::TensorInfo info, checkpoint.info(name));
  if (info.bytes > kMaxStateBytes)
    return error(StatusCode::kInvalidArgument, "has {} bytes, at most {} are read", info.bytes,
                 kMaxStateBytes);
  MESH_ASSIGN_OR_RETURN(const std::string_view bytes, checkpoint.tensor(name));
  MESH_ASSIGN_OR_RETURN(const json::Value value, json::parse(bytes));
  const json::View view(value);
  MESH_ASSIGN_OR_RETURN(const std::string type, view.get<std::string>("quant_type"));
  MESH_ASSIGN_OR_RETURN(const auto block, view.get<std::uint64_t>("blocksize"));
  MESH_ASSIGN_OR_RETURN(const auto shape, view.get_list<std::uint64_t>("shape"));
  if (type != "nf4" || block != kBlock || shape != std::vector<std::uint64_t>{out, in}) {
    return error(StatusCode::kInvalidArgument,
                 "is {} in blocks of {} for a [{}] matrix, needed nf4, 64, [{}, {}]", type, block,
                 fmt::join(shape, ", "), out, in);
  }
  State state;
  if (nested) {
    MESH_ASSIGN_OR_RETURN(const auto nested_block, view.get<std::uint64_t>("nested_blocksize"));
    MESH_ASSIGN_OR_RETURN(state.nested_offset, view.get<float>("nested_offset"));
    if (nested_block != kNestedBlock)
      return error(StatusCode::kInvalidArgument, "has nested blocks of {}, needed 256", nested_block);
  }
  return state;
}

}  // namespace

bool is_quantised(const safetensors::TensorInfo& info, Quantization stored) {
  return (stored == Quantization::kInt8 && info.dtype == Dtype::kI8) ||
         (stored == Quantization::kNf4 && info.dtype == Dtype::kU8);
}

std::vector<std::string> names_beside(std::string_view weight, Quantization stored) {
  if (stored == Quantization::kInt8) return {scales_name(weight), std::string(weight) + "_format"};
  if (stored != Quantization::kNf4) return {};
  std::vector<std::string> names;
  for (const std::string_view name :
       {std::string_view("absmax"), std::string_view("quant_map"), kState, std::string_view("nested_absmax"),
        std::string_view("nested_quant_map")}) {
    names.push_back(part(weight, name));
  }
  return names;
}

StatusOr<FoundTensor> find(hub::Checkpoint& checkpoint, const std::string& weight, Quantization stored,
                           const std::vector<std::uint64_t>& shape) {
  FoundTensor found;
  MESH_ASSIGN_OR_RETURN(const safetensors::TensorInfo info, checkpoint.info(weight));
  const std::uint64_t values = shape[0] * shape[1];
  const std::vector<std::uint64_t> turned{shape[1], shape[0]};
  const bool fits = stored == Quantization::kInt8 ? info.shape == shape || info.shape == turned
                                                  : values % 2 == 0 && info.bytes == values / 2;
  if (!fits) {
    found.problem = fmt::format("{} is [{}], needed {} codes of a [{}] matrix", weight,
                                fmt::join(info.shape, ", "), to_string(stored), fmt::join(shape, ", "));
    return found;
  }
  found.tensor = {stored, Element::kBf16, info.bytes, {weight}};
  const bool nested = checkpoint.has(part(weight, "nested_absmax"));
  const std::uint64_t out = info.shape.empty() ? 0 : info.shape[0];  // nf4 codes may have any shape
  for (const Needed& needed : needed_beside(weight, stored, out, values, nested)) {
    if (!checkpoint.has(needed.name)) {
      found.problem = fmt::format("{} is missing beside {}", needed.name, weight);
      return found;
    }
    MESH_ASSIGN_OR_RETURN(const safetensors::TensorInfo beside, checkpoint.info(needed.name));
    std::uint64_t count = 1;
    for (const std::uint64_t extent : beside.shape) count *= extent;
    if (beside.dtype != needed.dtype || (needed.values != 0 && count != needed.values)) {
      found.problem =
          fmt::format("{} is {} [{}], needed {} {}", needed.name, safetensors::dtype_name(beside.dtype),
                      fmt::join(beside.shape, ", "), safetensors::dtype_name(needed.dtype), needed.values);
      return found;
    }
    found.tensor.bytes += beside.bytes;
    found.tensor.names.push_back(needed.name);
  }
  return found;
}

StatusOr<std::vector<float>> read_scales(hub::Checkpoint& checkpoint, const StoredTensor& tensor,
                                         std::uint64_t out, std::uint64_t in) {
  const std::string& weight = tensor.names[0];
  if (tensor.quantization == Quantization::kInt8) {
    MESH_ASSIGN_OR_RETURN(std::vector<float> scales, floats(checkpoint, scales_name(weight)));
    if (scales.size() == out) return scales;
    return error(StatusCode::kInvalidArgument, "{} has {} rows, needed {}", weight, scales.size(), out);
  }
  const bool nested = std::ranges::find(tensor.names, part(weight, "nested_absmax")) != tensor.names.end();
  const auto state = read_state(checkpoint, part(weight, kState), out, in, nested);
  if (!state.ok()) return with_context(state.status(), part(weight, kState));
  MESH_ASSIGN_OR_RETURN(const std::vector<float> map, floats(checkpoint, part(weight, "quant_map")));
  if (!std::ranges::equal(map, ops::kNf4Values))
    return error(StatusCode::kInvalidArgument, "{}.quant_map is not that of NF4", weight);
  if (!nested) return floats(checkpoint, part(weight, "absmax"));

  MESH_ASSIGN_OR_RETURN(const std::vector<float> outer, floats(checkpoint, part(weight, "nested_absmax")));
  MESH_ASSIGN_OR_RETURN(const std::vector<float> levels,
                        floats(checkpoint, part(weight, "nested_quant_map")));
  MESH_ASSIGN_OR_RETURN(const std::string_view codes, checkpoint.tensor(part(weight, "absmax")));
  std::vector<float> scales(codes.size());
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const double exact = double{levels[static_cast<std::uint8_t>(codes[i])]} * outer[i / kNestedBlock];
    scales[i] = static_cast<float>(exact) + state->nested_offset;
  }
  checkpoint.release(codes);
  if (!std::ranges::all_of(scales, [](float scale) { return std::isfinite(scale); }))
    return error(StatusCode::kInvalidArgument, "{}.absmax has values that are not finite", weight);
  return scales;
}

}  // namespace mesh::engine::bitsandbytes
