#include "node/engine/ops/reference/reference.h"

#include <ATen/ATen.h>

#include <limits>
#include <optional>

namespace mesh::ops::reference {
namespace {
std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}
}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x, weight, if_defined(bias));
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double weight_offset) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor factor = at::rsqrt(wide.pow(2).mean(-1, true) + eps);
  return (wide * factor * (weight.to(at::kFloat) + weight_offset)).to(x.scalar_type());
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  return at::layer_norm(x, {x.size(-1)}, weight, if_defined(bias), eps);
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const std::int64_t half = cos.size(-1);
  const at::Tensor a = x.narrow(-1, 0, half);
  const at::Tensor b = x.narrow(-1, half, half);
  const at::Tensor c = cos.unsqueeze(1), s = sin.unsqueeze(1);
  const at::Tensor rest = x.narrow(-1, 2 * half, x.size(-1) - 2 * half);
  return at::cat({(a * c - b * s).to(x.scalar_type()), (b * c + a * s).to(x.scalar_type()), rest}, -1);
}

at::Tensor silu_mul(const at::Tensor& x) {
  const std::int64_t inner = x.size(-1) / 2;
  return at::silu(x.narrow(-1, 0, inner)) * x.narrow(-1, inner, inner);
}

at::Tensor gelu_tanh(const at::Tensor& x) {
  return at::gelu(x, "tanh");
}

at::Tensor gelu_exact(const at::Tensor& x) {
  return at::gelu(x, "none");
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                     const AttentionShape& shape) {
  const std::int64_t rows = q.size(0), group = q.size(1) / k.size(1);
  const at::Tensor keys = k.repeat_interleave(group, 1).permute({1, 2, 0});    // [heads, d, S]
  const at::Tensor values = v.repeat_interleave(group, 1).permute({1, 0, 2});  // [heads, S, d]
  at::Tensor scores = at::matmul(q.permute({1, 0, 2}), keys).to(at::kFloat) * shape.scale;
  const auto options = q.options().dtype(at::kLong);
  const at::Tensor i = at::arange(shape.start, shape.start + rows, options).unsqueeze(1);
  const at::Tensor j = at::arange(k.size(0), options).unsqueeze(0);
  const double hidden = -std::numeric_limits<double>::infinity();
  if (mask.defined()) {
    scores = scores + mask;
  } else {
    scores = scores.masked_fill(j > i, hidden);
  }
  if (shape.window > 0) scores = scores.masked_fill(j <= i - shape.window, hidden);
  const at::Tensor weights = at::softmax(scores, -1).to(v.scalar_type());
  return at::matmul(weights, values).permute({1, 0, 2}).contiguous();
}

}  // namespace mesh::ops::reference
