#pragma once

#include <functional>

#include "node/engine/cuda/tensors.h"

namespace mesh::engine::cuda {

struct CudaLinear final : LinearWeight {
  at::Tensor weight;  ///< [out, in], bfloat16 or float32
  at::Tensor bias;    ///< [out] float32, or undefined

  std::int64_t out_features() const override { return weight.size(0); }
  std::int64_t in_features() const override { return weight.size(1); }
  std::uint64_t bytes() const override { return weight.nbytes() + (bias.defined() ? bias.nbytes() : 0); }
};

/// Copies on a stream of its own, so that steps go on.
StatusOr<std::unique_ptr<LinearLoader>> make_linear_loader(int device, std::int64_t out, std::int64_t in,
                                                           Element element);

/// Runs `body`; an exception becomes a status: kResourceExhausted when the GPU's memory ran out.
Status guarded(const std::function<void()>& body);

}  // namespace mesh::engine::cuda
