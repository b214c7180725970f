#include <cuda_bf16.h>

#include "node/engine/cuda/kv_kernels.h"

namespace mesh::engine::cuda {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr int kThreads = 256;

/// Value `index` of the heads of a position.
template <class Stored>
__device__ Stored& slot(const KvBlocks& kv, std::int64_t position, bool values, std::int64_t index) {
  auto* base = reinterpret_cast<Stored*>(kv.blocks[position / kBlock]);
  const std::int64_t head = index / kv.head_dim + (values ? kv.kv_heads : 0);
  return base[(head * kBlock + position % kBlock) * kv.head_dim + index % kv.head_dim];
}

template <class Stored>
__global__ void append(KvBlocks kv, const float* k, const float* v, std::int64_t stride, std::int64_t start) {
  const std::int64_t row = blockIdx.x;
  const bool values = blockIdx.y == 1;
  const float* from = (values ? v : k) + row * stride;
  for (std::int64_t i = threadIdx.x; i < kv.kv_heads * kv.head_dim; i += blockDim.x) {
    slot<Stored>(kv, start + row, values, i) = static_cast<Stored>(from[i]);
  }
}

template <class Stored>
__global__ void gather(KvBlocks kv, float* keys, float* values_out) {
  const std::int64_t position = blockIdx.x, width = kv.kv_heads * kv.head_dim;
  const bool values = blockIdx.y == 1;
  float* to = (values ? values_out : keys) + position * width;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    to[i] = static_cast<float>(slot<Stored>(kv, position, values, i));
  }
}

}  // namespace

cudaError_t append_kv(const KvBlocks& kv, const float* k, const float* v, std::int64_t stride,
                      std::int64_t start, std::int64_t rows, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(rows), 2);
  if (kv.bfloat16) {
    append<__nv_bfloat16><<<grid, kThreads, 0, stream>>>(kv, k, v, stride, start);
  } else {
    append<float><<<grid, kThreads, 0, stream>>>(kv, k, v, stride, start);
  }
  return cudaGetLastError();
}

cudaError_t gather_kv(const KvBlocks& kv, float* keys, float* values, std::int64_t count,
                      cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(count), 2);
  if (kv.bfloat16) {
    gather<__nv_bfloat16><<<grid, kThreads, 0, stream>>>(kv, keys, values);
  } else {
    gather<float><<<grid, kThreads, 0, stream>>>(kv, keys, values);
  }
  return cudaGetLastError();
}

}  // namespace mesh::engine::cuda
