#pragma once

#include "node/engine/cuda/kernels/bulk_copies.cuh"

/// Pieces of a matrix and of the rows that meet it, on their way through shared memory (compute capability
/// 9.0).
namespace mesh::engine::cuda {

#if __CUDA_ARCH__ >= 900
/// The stages in turn, as one side goes through them. Shape says how many there are (kStages), their bytes
/// (kStageBytes) and where the rows begin (kWeightBytes). Two barriers each: full, empty.
template <class Shape>
struct TileStages {
  unsigned memory, barriers;
  int index = 0;
  unsigned round = 0;

  __device__ unsigned weights() const { return memory + index * Shape::kStageBytes; }
  __device__ unsigned rows() const { return weights() + Shape::kWeightBytes; }
  __device__ unsigned full() const { return barriers + index * 16; }
  __device__ unsigned empty() const { return barriers + index * 16 + 8; }
  __device__ void advance() {
    if (++index < Shape::kStages) return;
    index = 0, ++round;
  }
};

/// By one thread, of stages from `barriers` on: `readers` arrivals empty one.
template <class Shape>
__device__ void make_stage_barriers(unsigned barriers, unsigned readers) {
  for (int i = 0; i < Shape::kStages; ++i) {
    make_barrier(barriers + i * 16, 1);
    make_barrier(barriers + i * 16 + 8, readers);
  }
  publish_barriers();
}
#endif

}  // namespace mesh::engine::cuda
