#pragma once

#include <cuda_runtime.h>

#include "node/engine/cuda/kernels/kernels.h"

namespace mesh::engine::cuda {

/// Enqueues `kernel` in clusters of `cluster` blocks; asks for more than 48 KiB of shared memory where it
/// takes that.
template <class... Parameters, class... Arguments>
cudaError_t enqueue_clusters(const Launch& launch, void (*kernel)(Parameters...), dim3 grid, int threads,
                             std::size_t shared, unsigned cluster, const Arguments&... arguments) {
  if (shared > 32 * 1024) {  // beside what is static, more than 48 KiB needs leave
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = launch.stream;
  cudaLaunchAttribute attributes[2]{};
  config.attrs = attributes;
  if (launch.overlap) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& together = attributes[config.numAttrs++];
    together.id = cudaLaunchAttributeClusterDimension;
    together.val.clusterDim.x = cluster;
    together.val.clusterDim.y = together.val.clusterDim.z = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

template <class... Parameters, class... Arguments>
cudaError_t enqueue(const Launch& launch, void (*kernel)(Parameters...), dim3 grid, int threads,
                    std::size_t shared, Arguments... arguments) {
  return enqueue_clusters(launch, kernel, grid, threads, shared, 1, arguments...);
}

}  // namespace mesh::engine::cuda
