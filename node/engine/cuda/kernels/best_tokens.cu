#include "node/engine/cuda/kernels/device.cuh"
#include "node/engine/cuda/kernels/launch.cuh"

namespace mesh::engine::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kPieces = 64;  // blocks of one row: two for each lane of the warp that joins them
constexpr int kLoads = 8;    // of a thread at a time

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

__device__ Part part_at(const Scratch& scratch, int index) {
  const int4 words = __ldcg(reinterpret_cast<const int4*>(&scratch.parts[index]));
  return {__int_as_float(words.x), words.y, __int_as_float(words.z), words.w};
}

/// The next kLoads values of the thread, `values` [count] from `at` on.
__device__ void take(Part& part, const float* values, int at, int count) {
  float loaded[kLoads];
  float best = -INFINITY;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const bool there = at + i * kThreads < count;
    loaded[i] = there ? __ldcg(values + at + i * kThreads) : -INFINITY;
    if (there) part.finite &= isfinite(loaded[i]) ? 1 : 0;
    best = fmaxf(best, loaded[i]);
  }
  if (best == -INFINITY) return;
  if (best > part.best) {
    part.mass = part.mass == 0 ? 0 : part.mass * expf(part.best - best);
    part.best = best;
#pragma unroll
    for (int i = kLoads - 1; i >= 0; --i) {
      if (loaded[i] == best) part.id = at + i * kThreads;
    }
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) part.mass += expf(loaded[i] - part.best);
}

__global__ void __launch_bounds__(kThreads)
    find_best(const float* logits, int vocab, Scratch* scratch, Best* best) {
  __shared__ Part warps[kWarps];
  wait_for_previous_launch();
  let_next_launch_begin();
  const int row = blockIdx.y, length = (vocab + kPieces - 1) / kPieces, lane = threadIdx.x % 32;
  const int first = blockIdx.x * length, last = min(vocab, first + length);
  const Part none{-INFINITY, 0x7fffffff, 0, 1};
  Part part = none;
  for (int at = first + static_cast<int>(threadIdx.x); at < last; at += kThreads * kLoads)
    take(part, logits + std::int64_t{row} * vocab, at, last);
  part = join_lanes(part);
  if (lane == 0) warps[threadIdx.x / 32] = part;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  part = join_lanes(lane < kWarps ? warps[lane] : none);
  Scratch& shared = scratch[row];
  bool ends = false;
  if (lane == 0) {
    shared.parts[blockIdx.x] = part;
    __threadfence();
    ends = atomicAdd(&shared.done, 1u) + 1 == kPieces;
  }
  if (!__shfl_sync(~0u, ends, 0)) return;
  __threadfence();
  part = join_lanes(join(part_at(shared, lane), part_at(shared, lane + 32)));
  if (lane != 0) return;
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
