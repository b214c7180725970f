#include "node/engine/cuda/kernels/step_ends.h"

#include "node/engine/cuda/kernels/codes.cuh"
#include "node/engine/cuda/kernels/launch.cuh"

namespace mesh::engine::cuda {
namespace {

constexpr int kThreads = 256, kEight = 8;

struct Eight {
  float value[kEight];
};
__device__ Eight read_narrow(const void* from) {
  const uint4 words = *static_cast<const uint4*>(from);
  const float2 a = widen(words.x), b = widen(words.y), c = widen(words.z), d = widen(words.w);
  return {{a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y}};
}
__device__ Eight read_wide(const void* from) {
  const float4 a = static_cast<const float4*>(from)[0], b = static_cast<const float4*>(from)[1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ Eight read_coded(const CodedMatrix& coded, int id, int at) {
  Eight eight;
#pragma unroll
  for (int i = 0; i < kEight; ++i) eight.value[i] = coded_weight(coded, id, at + i);
  return eight;
}

/// The grid's threads share the copy.
template <class T>
__device__ void bring(T* to, const T* from, int count) {
  const int first = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  for (int i = first; i < count; i += static_cast<int>(gridDim.x) * kThreads) to[i] = from[i];
}

__global__ void __launch_bounds__(kThreads) begin_rows(const StepInput input) {
  __shared__ int token, place, blocks;
  __shared__ const std::byte* source;
  const HostTables& given = input.copied ? *input.device : *input.host;
  DeviceTables& device = input.device->device;
  const int row = blockIdx.x;
  if (threadIdx.x == 0) {
    token = given.ids[row], place = given.rotary[row], source = given.hidden[row];
    blocks = given.block_count;
  }
  if (!input.copied) {
    bring(device.tiles, given.device.tiles, input.tiles);
    bring(device.place, given.device.place, input.rows);
    bring(device.first_block, given.device.first_block, input.rows);
    bring(device.sampled, given.device.sampled, input.sampled);
  }
  __syncthreads();
  const int id = token, position = place;
  const std::byte* const hidden = source;
  bring(device.blocks, input.host->device.blocks, blocks);
  for (int at = static_cast<int>(threadIdx.x) * kEight; at < input.hidden; at += kThreads * kEight) {
    Eight eight{};
    if (id >= 0 && input.coded.rows != nullptr) {
      eight = read_coded(input.coded, id, at);
    } else if (id >= 0) {
      eight = read_narrow(static_cast<const Bf*>(input.embedding) + std::int64_t{id} * input.hidden + at);
    } else if (id == kNarrowRow) {
      eight = read_narrow(hidden + at * 2);
    } else if (id == kWideRow) {
      eight = read_wide(hidden + at * 4);
    }
    float4* const to = reinterpret_cast<float4*>(input.x + std::int64_t{row} * input.hidden + at);
    to[0] = make_float4(eight.value[0], eight.value[1], eight.value[2], eight.value[3]);
    to[1] = make_float4(eight.value[4], eight.value[5], eight.value[6], eight.value[7]);
  }
  for (int i = static_cast<int>(threadIdx.x); i < input.pairs; i += kThreads) {
    const float angle = static_cast<float>(position) * given.frequencies[i];
    double s = 0, c = 0;
    sincos(static_cast<double>(angle), &s, &c);
    input.cos[row * input.pairs + i] = static_cast<float>(c) * input.rotation_scale;
    input.sin[row * input.pairs + i] = static_cast<float>(s) * input.rotation_scale;
  }
}

__global__ void __launch_bounds__(kThreads)
    end_rows(const int* finite, int rows, const Best* best, int sampled, HostResults* host) {
  wait_for_previous_launch();
  bring(host->finite, finite, rows);
  bring(host->best, best, sampled);
}

__global__ void __launch_bounds__(kThreads)
    round_values(const float* from, Bf* to, Bf* host, std::int64_t count) {
  wait_for_previous_launch();
  const std::int64_t at = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEight;
  if (at >= count) return;
  const float4 a = __ldcg(reinterpret_cast<const float4*>(from + at)),
               b = __ldcg(reinterpret_cast<const float4*>(from + at) + 1);
  const uint4 words = make_uint4(narrow(a.x, a.y), narrow(a.z, a.w), narrow(b.x, b.y), narrow(b.z, b.w));
  *reinterpret_cast<uint4*>(to + at) = words;
  if (host != nullptr) *reinterpret_cast<uint4*>(host + at) = words;
}

dim3 blocks_for(std::int64_t threads) {
  return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
}

}  // namespace

cudaError_t begin_step(const Launch& launch, const StepInput& input) {
  Launch alone = launch;
  alone.overlap = false;  // launches of the step before read the tables
  return enqueue(alone, begin_rows, dim3(static_cast<unsigned>(input.rows)), kThreads, 0, input);
}

cudaError_t end_step(const Launch& launch, const int* finite, int rows, const Best* best, int sampled,
                     HostResults* host) {
  return enqueue(launch, end_rows, blocks_for(rows), kThreads, 0, finite, rows, best, sampled, host);
}

cudaError_t narrow_values(const Launch& launch, const float* from, void* to, void* host, std::int64_t count) {
  return enqueue(launch, round_values, blocks_for(count / kEight), kThreads, 0, from, static_cast<Bf*>(to),
                 static_cast<Bf*>(host), count);
}

}  // namespace mesh::engine::cuda
