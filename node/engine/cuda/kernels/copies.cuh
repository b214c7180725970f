#pragma once

#include "node/engine/cuda/kernels/device.cuh"

/// Copies from global to shared memory that a thread asks for and later waits for itself (compute capability
/// 8.0; before that they are made at once).
namespace mesh::engine::cuda {

/// 16 bytes past the L1 cache, or zeros instead. Both addresses are multiples of 16.
__device__ inline void copy_16(void* to, const void* from, bool present) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                   static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(present ? 16 : 0)
               : "memory");
#else
  *static_cast<uint4*>(to) = present ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
#endif
}

/// Ends a group of copies.
__device__ inline void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Until all groups but the newest `kNewest` are there.
template <int kNewest>
__device__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
#endif
}

}  // namespace mesh::engine::cuda
