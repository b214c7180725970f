#include "node/engine/cuda/kernels/device.cuh"
#include "node/engine/cuda/kernels/launch.cuh"
#include "node/engine/cuda/kernels/normal_pair.cuh"

// What works on one row at a time: norms, activation.
namespace mesh::engine::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float4 plus(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/// x + delta + bias at four columns.
__device__ float4 summed(const float* x, const float* delta, const float* bias, std::int64_t row, int hidden,
                         int at) {
  const auto four = [&](const float* from, std::int64_t first) {
    return __ldcg(reinterpret_cast<const float4*>(from + first) + at);
  };
  float4 value = four(x, row * hidden);
  if (delta != nullptr) value = plus(value, four(delta, row * hidden));
  if (bias != nullptr) value = plus(value, four(bias, 0));
  return value;
}

constexpr int kHeld = 8;  // four-column pieces that a thread keeps: rows of 8,192 are read once

__global__ void normalise_rows(float* x, const float* delta, const float* bias, const float* weight,
                               float epsilon, const int* sampled, Bf* out, int hidden) {
  let_next_launch_begin();
  __shared__ float shared[33];
  wait_for_previous_launch();
  const std::int64_t row = sampled != nullptr ? sampled[blockIdx.x] : static_cast<int>(blockIdx.x);
  const int pieces = hidden / 4;
  float4* const kept = reinterpret_cast<float4*>(x + row * hidden);
  float4 held[kHeld];
  float squares = 0;
  const auto visit = [&](int at) {
    const float4 v = summed(x, delta, bias, row, hidden, at);
    if (delta != nullptr || bias != nullptr) kept[at] = v;
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    return v;
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = threadIdx.x + i * kThreads;
    if (at < pieces) held[i] = visit(at);
  }
  for (int at = threadIdx.x + kHeld * kThreads; at < pieces; at += kThreads) visit(at);
  const float factor = rsqrtf(sum_over_block(squares, shared) / static_cast<float>(hidden) + epsilon);
  uint2* const to = reinterpret_cast<uint2*>(out + static_cast<std::int64_t>(blockIdx.x) * hidden);
  const auto put = [&](int at, const float4& v) {
    const float4 w = reinterpret_cast<const float4*>(weight)[at];
    to[at] = make_uint2(narrow(v.x * factor * w.x, v.y * factor * w.y),
                        narrow(v.z * factor * w.z, v.w * factor * w.w));
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = threadIdx.x + i * kThreads;
    if (at < pieces) put(at, held[i]);
  }
  for (int at = threadIdx.x + kHeld * kThreads; at < pieces; at += kThreads) put(at, kept[at]);
}

__global__ void end_rows(float* x, const float* delta, const float* bias, int* finite, int hidden) {
  __shared__ float shared[33];
  wait_for_previous_launch();
  let_next_launch_begin();
  const std::int64_t row = blockIdx.x;
  float bad = 0;
  for (int at = threadIdx.x; at < hidden / 4; at += kThreads) {
    const float4 v = summed(x, delta, bias, row, hidden, at);
    if (delta != nullptr || bias != nullptr) reinterpret_cast<float4*>(x + row * hidden)[at] = v;
    if (!isfinite(v.x) || !isfinite(v.y) || !isfinite(v.z) || !isfinite(v.w)) bad = 1;
  }
  bad = sum_over_block(bad, shared);
  if (threadIdx.x == 0) finite[row] = bad == 0;
}

__global__ void gate_rows(const Bf* x, const float* bias, Bf* out, int inner) {
  let_next_launch_begin();
  wait_for_previous_launch();
  const std::int64_t row = blockIdx.y;
  const int at = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (at >= inner) return;
  const Bf* from = x + row * 2 * inner + at;
  const uint4 gates = __ldcg(reinterpret_cast<const uint4*>(from));
  const uint4 ups = __ldcg(reinterpret_cast<const uint4*>(from + inner));
  const std::uint32_t gate_words[4] = {gates.x, gates.y, gates.z, gates.w};
  const std::uint32_t up_words[4] = {ups.x, ups.y, ups.z, ups.w};
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float2 gate = widen(gate_words[i]), up = widen(up_words[i]);
    if (bias != nullptr) {
      gate.x += bias[at + 2 * i], gate.y += bias[at + 2 * i + 1];
      up.x += bias[inner + at + 2 * i], up.y += bias[inner + at + 2 * i + 1];
    }
    words[i] = narrow(gate.x / (1 + __expf(-gate.x)) * up.x, gate.y / (1 + __expf(-gate.y)) * up.y);
  }
  *reinterpret_cast<uint4*>(out + row * inner + at) = make_uint4(words[0], words[1], words[2], words[3]);
}

__global__ void normal_values(void* values, bool bfloat16, std::int64_t count, std::uint64_t seed,
                              float deviation) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < (count + 1) / 2; i += step) {
    const float2 pair = normal_pair(seed, static_cast<std::uint64_t>(i));
    const float both[2] = {pair.x * deviation, pair.y * deviation};
    for (int k = 0; k < 2 && 2 * i + k < count; ++k) {
      if (bfloat16) {
        static_cast<Bf*>(values)[2 * i + k] = __float2bfloat16(both[k]);
      } else {
        static_cast<float*>(values)[2 * i + k] = both[k];
      }
    }
  }
}

dim3 blocks(int count) {
  return dim3(static_cast<unsigned>(count));
}

}  // namespace

cudaError_t norm_rows(const Launch& launch, float* x, const float* delta, const float* bias,
                      const float* weight, float epsilon, const int* sampled, void* out, int rows,
                      int hidden) {
  return enqueue(launch, normalise_rows, blocks(rows), kThreads, 0, x, delta, bias, weight, epsilon, sampled,
                 static_cast<Bf*>(out), hidden);
}

cudaError_t finish_rows(const Launch& launch, float* x, const float* delta, const float* bias, int* finite,
                        int rows, int hidden) {
  return enqueue(launch, end_rows, blocks(rows), kThreads, 0, x, delta, bias, finite, hidden);
}

cudaError_t silu_mul_rows(const Launch& launch, const void* x, const float* bias, void* out, int rows,
                          int inner) {
  const dim3 grid(static_cast<unsigned>((inner / 8 + kThreads - 1) / kThreads), static_cast<unsigned>(rows));
  return enqueue(launch, gate_rows, grid, kThreads, 0, static_cast<const Bf*>(x), bias, static_cast<Bf*>(out),
                 inner);
}

cudaError_t fill_normal(cudaStream_t stream, void* values, bool bfloat16, std::int64_t count,
                        std::uint64_t seed, float deviation) {
  normal_values<<<4096, 256, 0, stream>>>(values, bfloat16, count, seed, deviation);
  return cudaGetLastError();
}

}  // namespace mesh::engine::cuda
