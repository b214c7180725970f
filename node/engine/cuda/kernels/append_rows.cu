#include "node/engine/cuda/kernels/device.cuh"
#include "node/engine/cuda/kernels/head_rows.cuh"
#include "node/engine/cuda/kernels/launch.cuh"

namespace mesh::engine::cuda {
namespace {

constexpr int kThreads = 256;

/// kDim / 8 threads for each head of a row: query heads, key heads, value heads.
template <int kDim>
__global__ void append(const StepTables tables, const AttentionRows attention, Bf* q) {
  constexpr int kLanes = kDim / 8;
  wait_for_previous_launch();
  let_next_launch_begin();
  const int row = blockIdx.y, kv_heads = attention.kv.kv_heads;
  const int head = (blockIdx.x * kThreads + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes, place = tables.place[row];
  const int heads = attention.heads;
  const bool present = head < heads + 2 * kv_heads && place >= 0;
  // Whole warps go on: heads that do not exist compute on head 0.
  const HeadRow<kDim> values = read_head<kDim>(attention, row, present ? head : 0, lane);
  if (!present) return;
  if (head < heads) {
    *reinterpret_cast<uint4*>(q + (std::int64_t{row} * heads + head) * kDim + lane * 8) = values.packed();
    return;
  }
  const bool key = head < heads + kv_heads;
  const KvPlace cache{tables, attention.kv, tables.first_block[row],
                      key ? head - heads : head - heads - kv_heads};
  *reinterpret_cast<uint4*>(cache.row(place) + (key ? 0 : cache.values_offset()) + lane * 8) =
      values.packed();
}

}  // namespace

cudaError_t append_rows(const Launch& launch, const StepTables& tables, const AttentionRows& attention,
                        void* q, int rows) {
  const int dim = attention.kv.head_dim;
  const int threads = (attention.heads + 2 * attention.kv.kv_heads) * (dim / 8);
  const dim3 grid(static_cast<unsigned>((threads + kThreads - 1) / kThreads), static_cast<unsigned>(rows));
  const auto kernel = dim == 32 ? append<32> : dim == 64 ? append<64> : append<128>;
  return enqueue(launch, kernel, grid, kThreads, 0, tables, attention, static_cast<Bf*>(q));
}

}  // namespace mesh::engine::cuda
