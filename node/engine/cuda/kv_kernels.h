#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace mesh::engine::cuda {

/// A layer's KV block on a GPU: keys [kv_heads, 128, head_dim], then the values in the same way.
struct KvBlocks {
  std::byte* const* blocks = nullptr;  ///< device array of block addresses, one for every 128 positions
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  bool bfloat16 = false;  ///< else float32
};

/// Stores k, v [rows, kv_heads · head_dim] (float32, `stride` values between rows) at positions start, start
/// + 1, ….
cudaError_t append_kv(const KvBlocks& kv, const float* k, const float* v, std::int64_t stride,
                      std::int64_t start, std::int64_t rows, cudaStream_t stream);
/// keys, values [count, kv_heads · head_dim] ← positions [0, count), as float32.
cudaError_t gather_kv(const KvBlocks& kv, float* keys, float* values, std::int64_t count,
                      cudaStream_t stream);

}  // namespace mesh::engine::cuda
