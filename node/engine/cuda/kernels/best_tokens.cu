#include "node/engine/cuda/kernels/device.cuh"
#include "node/engine/cuda/kernels/launch.cuh"

namespace mesh::engine::cuda {
namespace {

constexpr int kThreads = 256, kPieces = 16;  // blocks of one row

/// Of a part of a row: the best value and its lowest id, Σ exp(value − best), whether all values are finite.
struct Part {
  float best;
  int id;
  float mass;
  int finite;
};
struct Scratch {
  Part parts[kPieces];
  unsigned done;
  unsigned unused[3];
};

__device__ Part join(const Part& a, const Part& b) {
  const bool first = a.best > b.best || (a.best == b.best && a.id < b.id);
  const float best = first ? a.best : b.best;
  const auto mass = [&](const Part& part) {
    return part.mass == 0 ? 0.0f : part.mass * expf(part.best - best);
  };
  return {best, first ? a.id : b.id, mass(a) + mass(b), a.finite & b.finite};
}

__device__ Part join_lanes(Part part) {
  for (int offset = 16; offset > 0; offset /= 2) {
    part = join(part, {__shfl_xor_sync(~0u, part.best, offset), __shfl_xor_sync(~0u, part.id, offset),
                       __shfl_xor_sync(~0u, part.mass, offset), __shfl_xor_sync(~0u, part.finite, offset)});
  }
  return part;
}

__global__ void find_best(const float* logits, int vocab, Scratch* scratch, Best* best) {
  __shared__ Part warps[kThreads / 32];
  wait_for_previous_launch();
  let_next_launch_begin();
  const int row = blockIdx.y, length = (vocab + kPieces - 1) / kPieces;
  const int first = blockIdx.x * length, last = min(vocab, first + length);
  const float* values = logits + std::int64_t{row} * vocab;
  Part part{-INFINITY, 0x7fffffff, 0, 1};
  for (int i = first + threadIdx.x; i < last; i += kThreads) {
    const float value = __ldcg(values + i);
    part.finite &= isfinite(value) ? 1 : 0;
    if (value > part.best) {
      part.mass = part.mass == 0 ? 1 : part.mass * expf(part.best - value) + 1;
      part.best = value;
      part.id = i;
    } else {
      part.mass += expf(value - part.best);
    }
  }
  part = join_lanes(part);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = part;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads / 32; ++i) part = join(part, warps[i]);
  Scratch& shared = scratch[row];
  shared.parts[blockIdx.x] = part;
  __threadfence();
  if (atomicAdd(&shared.done, 1u) + 1 < kPieces) return;
  __threadfence();
  part = shared.parts[0];
  for (int i = 1; i < kPieces; ++i) {
    const volatile Part& other = shared.parts[i];
    part = join(part, {other.best, other.id, other.mass, other.finite});
  }
  shared.done = 0;
  best[row] = {part.finite != 0 ? part.id : -1, -logf(part.mass)};
}

}  // namespace

std::size_t best_scratch_bytes(int rows) {
  return static_cast<std::size_t>(rows) * sizeof(Scratch);
}

cudaError_t best_tokens(const Launch& launch, const float* logits, int rows, int vocab, void* scratch,
                        Best* best) {
  return enqueue(launch, find_best, dim3(kPieces, static_cast<unsigned>(rows)), kThreads, 0, logits, vocab,
                 static_cast<Scratch*>(scratch), best);
}

}  // namespace mesh::engine::cuda
