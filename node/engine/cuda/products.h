#pragma once

#include "node/engine/cuda/cuda_linear.h"

namespace mesh::engine::cuda {

/// Products of a step's rows with matrices of values or codes. Few rows stream the matrix; more rows of
/// values are cuBLAS's (where the stage does not take tile_linear); more rows of codes go to tensor cores up
/// to kCodedRows, above it (or without tensor cores of our own) the codes are made values first, in room for
/// `values` of them that stays at its address.
class Products {
 public:
  void use_tensor_cores(bool use) { tensor_cores_ = use; }
  /// Room for `values` bfloat16 values; 0: there will be no codes.
  void resize(std::int64_t values);

  /// Whether the GPU's blocks have room for `rows` inputs of stream().
  static bool can_stream(const CudaLinear& weight, int rows);
  /// `linear` says all but the matrix. 1 … kStreamRows rows, if can_stream().
  static cudaError_t stream(const Launch& launch, const CudaLinear& weight, StreamLinear linear);
  /// y [rows, out], bfloat16 or float32, ← W·x; x [rows, in] bfloat16. On the current stream.
  void multiply(const Launch& launch, const CudaLinear& weight, const void* x, int rows, void* y,
                at::ScalarType type);
  /// y float32 += W·x of values. On the current stream.
  static void add(const CudaLinear& weight, const void* x, int rows, float* y);

 private:
  at::Tensor room_;
  bool tensor_cores_ = false;
};

}  // namespace mesh::engine::cuda
