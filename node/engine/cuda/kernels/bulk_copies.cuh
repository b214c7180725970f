#pragma once

#include <cuda.h>

#include "node/engine/cuda/kernels/device.cuh"

/// Barriers in shared memory and copies of tensor boxes that complete on them (compute capability 9.0), over
/// a cluster of blocks. A barrier's address is the same in every block of the cluster.
namespace mesh::engine::cuda {

#if __CUDA_ARCH__ >= 900
__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
/// What the cluster's threads wrote to shared memory before this is seen by all of them after it.
__device__ inline void join_cluster() {
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}
/// Four floats at the same address of another block of the cluster.
__device__ inline float4 read_block(unsigned address, unsigned rank) {
  float4 value;
  asm volatile(
      "{.reg .b32 remote; mapa.shared::cluster.u32 remote, %4, %5; "
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];}"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
}

__device__ inline void make_barrier(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Barriers made by this thread are seen by copies and by the cluster.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}
/// Arrives, and `bytes` of copies must complete besides.
__device__ inline void expect_bytes(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void arrive_at(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives at the barrier of block `rank` of the cluster, after what this thread has read there by products:
/// nothing else is ordered, which a release to the cluster would be and costs half a microsecond.
__device__ inline void arrive_at_block(unsigned barrier, unsigned rank) {
  asm volatile(
      "{.reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
/// What this thread wrote to shared memory is there for products and copies that others begin after a
/// barrier.
__device__ inline void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Until the phase of that parity is complete; the first phase is 0.
__device__ inline void wait_at(unsigned barrier, unsigned parity) {
  unsigned done = 0;
  while (done == 0) {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  }
}

inline constexpr std::uint64_t kEvictFirst = 0x12f0000000000000ull;  // L2: read once
inline constexpr std::uint64_t kEvictLast = 0x14f0000000000000ull;   // L2: read again

/// The box of a tensor of three axes that begins at (column, row, plane).
__device__ inline void copy_box(unsigned to, const CUtensorMap& tensor, unsigned barrier, int column, int row,
                                int plane, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&tensor), "r"(barrier), "r"(column), "r"(row), "r"(plane), "l"(policy)
      : "memory");
}
/// The same to both blocks of a cluster of two, at the same addresses; each block's barrier counts the bytes.
__device__ inline void share_box(unsigned to, const CUtensorMap& tensor, unsigned barrier, int column,
                                 int row, int plane, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %7, %6;" ::"r"(to),
      "l"(&tensor), "r"(barrier), "r"(column), "r"(row), "r"(plane), "l"(policy),
      "h"(static_cast<unsigned short>(3))
      : "memory");
}
#endif

}  // namespace mesh::engine::cuda
