#pragma once

#include <cuda.h>

#include "node/engine/cuda/kernels/device.cuh"

namespace mesh::engine::cuda {

/// cuTensorMapEncodeTiled, found in the driver at run time: nothing links to the driver.
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);
inline EncodeTiled find_encode_tiled() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTiled>(found)
                                                                       : nullptr;
}

/// A box of a tensor map: `rows` rows of each of `planes` planes, 64 columns of bfloat16, swizzled as
/// wgmma.cuh has them.
struct TensorBox {
  int rows, planes;
};
inline constexpr int kBoxColumns = 64;

/// `planes` planes of `rows` rows of `columns` bfloat16 without gaps, columns a multiple of 8.
inline cudaError_t describe(CUtensorMap& tensor, const void* data, int columns, int rows, int planes,
                            const TensorBox& box) {
  static const EncodeTiled encode = find_encode_tiled();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(planes)};
  const cuuint64_t strides[] = {sizes[0] * 2, sizes[0] * 2 * sizes[1]};
  const cuuint32_t extent[] = {kBoxColumns, static_cast<cuuint32_t>(box.rows),
                               static_cast<cuuint32_t>(box.planes)};
  const cuuint32_t steps[] = {1, 1, 1};
  const CUresult result =
      encode(&tensor, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), sizes, strides, extent,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace mesh::engine::cuda
