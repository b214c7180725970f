#pragma once

#include <cuda_runtime.h>

#include "node/engine/cuda/kernels/kernels.h"

namespace mesh::engine::cuda {

/// Enqueues `kernel`; asks for more than 48 KiB of shared memory where it takes that.
template <class... Parameters, class... Arguments>
cudaError_t enqueue(const Launch& launch, void (*kernel)(Parameters...), dim3 grid, int threads,
                    std::size_t shared, Arguments... arguments) {
  if (shared > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = launch.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = launch.overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace mesh::engine::cuda
