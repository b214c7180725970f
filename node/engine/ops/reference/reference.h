#pragma once

#include <cstdint>

namespace at {
class Tensor;
}

/// The ops of node/engine/ops written with ATen, for tensors of any device and float type: what the kernels
/// are tested against. Shapes and formulas as in the ops' own headers. Results have the type of x; ATen
/// chooses the order of sums, so rows may depend on their neighbours in the low bits.
namespace mesh::ops::reference {

/// x [M, in], weight [out, in], bias [out] or undefined → [M, out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// x [T, H], weight [H].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double weight_offset = 0);
/// bias [H] or undefined.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

/// x [T, heads, head_dim]; cos, sin [T, R].
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// x [T, 2·I] → [T, I].
at::Tensor silu_mul(const at::Tensor& x);
at::Tensor gelu_tanh(const at::Tensor& x);
at::Tensor gelu_exact(const at::Tensor& x);

struct AttentionShape {
  std::int64_t start = 0;   ///< position of the first row of q
  std::int64_t window = 0;  ///< 0: none
  double scale = 1;
};
/// q [T, heads, d]; k, v [start + T, kv_heads, d] of one session; mask [T, start + T] (added, replaces the
/// causal rule) or undefined → [T, heads, d].
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                     const AttentionShape& shape);

}  // namespace mesh::ops::reference
