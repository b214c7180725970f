#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "node/engine/weights/tensor_catalogue.h"

/// Matrices of FP8 checkpoints: `X.weight` F8_E4M3 [out, in] and beside it, F32, BF16, F16 or F8_E8M0, either
/// - `X.weight_scale_inv`: [⌈out/128⌉, ⌈in/128⌉], or
/// - `X.weight_scale`: the same, [out, 1] or [out], or [1] or [].
/// A weight is its code's number times the scale of its block, row or matrix, in float32. Scales of
/// activations and of KV ("input_scale", "k_scale", …) may stand there; nothing here is quantised with them.
namespace mesh::engine::fp8 {

bool is_quantised(const safetensors::TensorInfo& info, Quantization stored);
/// Every name that may stand beside the tensor `weight`.
std::vector<std::string> names_beside(std::string_view weight);
/// What ends a name that may be left unread.
bool may_be_left(std::string_view name);

/// A tensor for which is_quantised() holds, from headers alone. `shape`: of the matrix. `kept`: config.json
/// says that it is not quantised.
StatusOr<FoundTensor> find(hub::Checkpoint& checkpoint, const std::string& weight,
                           const std::vector<std::uint64_t>& shape, bool kept);

/// Scale [row / rows, column / 128 or 0] of an [out, in] matrix.
struct Scales {
  std::vector<float> values;  ///< [⌈out / rows⌉, a_row]
  std::uint64_t rows = 1;     ///< that share one
  std::uint64_t a_row = 1;    ///< scales of a row: 1, or one for each 128
};
/// Of a matrix that find() found. kInvalidArgument when a scale is not finite or makes weights that are not.
StatusOr<Scales> read_scales(hub::Checkpoint& checkpoint, const StoredTensor& tensor, std::uint64_t out,
                             std::uint64_t in);

}  // namespace mesh::engine::fp8
