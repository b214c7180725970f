#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "node/engine/weights/tensor_catalogue.h"

/// Quantised matrices as bitsandbytes 0.50 saves them (ops/quantise.h has the codes).
/// - int8: `X.weight` I8 [out, in], `X.SCB` F32 [out], perhaps `X.weight_format`.
/// - nf4: `X.weight` U8 [out · in / 2, 1] over the flattened matrix; `X.weight.absmax` F32, one for each 64;
///   `X.weight.quant_map`; `X.weight.quant_state.bitsandbytes__nf4`, JSON. Quantised twice: absmax is U8, a
///   code of `nested_quant_map` F32 [256], times `nested_absmax` F32, one for each 256, plus the state's
///   nested_offset.
namespace mesh::engine::bitsandbytes {

/// Whether a tensor of a model that is stored so is quantised itself.
bool is_quantised(const safetensors::TensorInfo& info, Quantization stored);
/// Every name that may stand beside the tensor `weight`.
std::vector<std::string> names_beside(std::string_view weight, Quantization stored);

/// A tensor for which is_quantised() holds, with all that belongs to it, from headers alone. `shape`: of the
/// matrix, maybe transposed.
StatusOr<FoundTensor> find(hub::Checkpoint& checkpoint, const std::string& weight, Quantization stored,
                           const std::vector<std::uint64_t>& shape);

/// The scales of an [out, in] matrix that find() found: int8 [out], nf4 one for each 64 of the flattened
/// matrix. kInvalidArgument when the state is not of such a matrix, or a scale is not finite.
StatusOr<std::vector<float>> read_scales(hub::Checkpoint& checkpoint, const StoredTensor& tensor,
                                         std::uint64_t out, std::uint64_t in);

}  // namespace mesh::engine::bitsandbytes
