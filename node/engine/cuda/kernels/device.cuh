#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "node/engine/cuda/kernels/kernels.h"

/// What the kernels share: bfloat16, reductions over a warp, and the order between dependent launches.
namespace mesh::engine::cuda {

using Bf = __nv_bfloat16;

/// A launch that may begin before the one ahead of it ends (compute capability 9.0): until this returns, only
/// memory that no launch of the step writes may be read.
__device__ inline void wait_for_previous_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The next launch may begin. Only after wait_for_previous_launch(), by every block or none.
__device__ inline void let_next_launch_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Two bfloat16 of one word, the lower first.
__device__ inline float2 widen(std::uint32_t word) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}
__device__ inline std::uint32_t narrow(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

template <int kLanes = 32>
__device__ inline float sum_over_lanes(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

/// The sum over a block of whole warps, at every thread, in a fixed order. `shared` has 33 floats.
__device__ inline float sum_over_block(float value, float* shared) {
  value = sum_over_lanes(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    value = threadIdx.x < blockDim.x / 32 ? shared[threadIdx.x] : 0.0f;
    value = sum_over_lanes(value);
    if (threadIdx.x == 0) shared[32] = value;
  }
  __syncthreads();
  return shared[32];
}

/// Weights are read once: past the L1 cache, in whole lines of L2.
__device__ inline uint4 read_once(const void* address) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

/// Product of 16 rows × 16 with 16 × 8, bfloat16, added to float32 sums (mma.m16n8k16). Compute capability 8.
__device__ inline void multiply(float (&sum)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

/// Where a session's keys of one KV head and layer lie, for the block that holds `position`; its values
/// follow `values_offset` further.
struct KvPlace {
  const StepTables& tables;
  const KvShape& kv;
  int first_block;
  int head;

  __device__ Bf* row(int position) const {
    std::byte* block = tables.blocks[first_block + position / kKvBlock] + kv.layer_offset;
    return reinterpret_cast<Bf*>(block) +
           (static_cast<std::int64_t>(head) * kKvBlock + position % kKvBlock) * kv.head_dim;
  }
  __device__ std::int64_t values_offset() const {
    return static_cast<std::int64_t>(kv.kv_heads) * kKvBlock * kv.head_dim;
  }
};

}  // namespace mesh::engine::cuda
