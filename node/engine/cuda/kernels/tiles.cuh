#pragma once

#include "node/engine/cuda/kernels/copies.cuh"

/// What attention over tiles in shared memory is made of (compute capability 8.0).
namespace mesh::engine::cuda {

#if __CUDA_ARCH__ >= 800
/// 16 bytes, or zeros, to an address in shared memory.
__device__ inline void copy_16(unsigned shared, const void* global, bool present) {
  copy_16(__cvta_shared_to_generic(shared), global, present);
}
/// Four 8 × 8 tiles of bfloat16, each lane one row's address, as `multiply` takes them.
template <bool kTransposed>
__device__ inline void load_matrices(std::uint32_t (&to)[4], const void* shared) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
}
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

}  // namespace mesh::engine::cuda
