#pragma once

#include <ATen/ATen.h>
#include <cuda_runtime_api.h>

#include <span>

#include "node/engine/device/device_ops.h"

namespace mesh::engine::cuda {

/// A CUDA error becomes an exception, which guarded() makes a status.
inline void check(cudaError_t error) {
  TORCH_CHECK(error == cudaSuccess, cudaGetErrorString(error));
}

inline at::TensorOptions on_gpu(at::ScalarType type) {
  return at::TensorOptions().dtype(type).device(at::kCUDA);
}

inline at::ScalarType type_of(Element element) {
  switch (element) {
    case Element::kBf16:
      return at::kBFloat16;
    case Element::kF16:
      return at::kHalf;
    case Element::kF32:
      break;
  }
  return at::kFloat;
}

/// The matrix as a tensor over the same memory.
inline at::Tensor view(ConstMatrix x) {
  return at::from_blob(const_cast<float*>(x.data), {x.rows, x.cols}, {x.stride, 1}, on_gpu(at::kFloat));
}
inline at::Tensor view(const float* data, std::int64_t count) {
  return at::from_blob(const_cast<float*>(data), {count}, on_gpu(at::kFloat));
}
/// Host memory as a tensor of rows.
inline at::Tensor host_view(const void* data, at::ScalarType type, std::int64_t rows, std::int64_t cols,
                            std::int64_t stride) {
  return at::from_blob(const_cast<void*>(data), {rows, cols}, {stride, 1}, at::TensorOptions().dtype(type));
}
template <class T>
at::Tensor to_gpu(std::span<const T> values, at::ScalarType type) {
  return host_view(values.data(), type, 1, static_cast<std::int64_t>(values.size()),
                   static_cast<std::int64_t>(values.size()))
      .to(at::kCUDA)
      .squeeze(0);
}

}  // namespace mesh::engine::cuda
