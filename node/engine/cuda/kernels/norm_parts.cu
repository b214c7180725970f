#include "node/engine/cuda/kernels/device.cuh"
#include "node/engine/cuda/kernels/launch.cuh"
#include "node/engine/cuda/kernels/tile_linear.h"

namespace mesh::engine::cuda {
namespace {

constexpr int kThreads = 512,
              kHeld = 4;  // four-column pieces that a thread keeps: rows of 8,192 are read once

__device__ void add(float4& to, const float4& more) {
  to.x += more.x, to.y += more.y, to.z += more.z, to.w += more.w;
}

/// A row for each block.
template <int kParts>
__global__ void __launch_bounds__(kThreads)
    join_and_normalise(float* x, const float* parts, const float* bias, const float* weight, float epsilon,
                       Bf* out, int hidden) {
  let_next_launch_begin();
  __shared__ float shared[33];
  const int row = static_cast<int>(blockIdx.x), pieces = hidden / 4;
  float4 held[kHeld], scale[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    if (at < pieces && out != nullptr) scale[i] = reinterpret_cast<const float4*>(weight)[at];
  }
  wait_for_previous_launch();
  float4* const kept = reinterpret_cast<float4*>(x) + std::int64_t{row} * pieces;
  float squares = 0;
  const auto visit = [&](int at) {
    float4 more[kParts + 1];
    float4 v = __ldcg(kept + at);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      more[part] = __ldcg(reinterpret_cast<const float4*>(parts) +
                          (std::int64_t{part} * gridDim.x + row) * pieces + at);
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) add(v, more[part]);
    if (bias != nullptr) add(v, reinterpret_cast<const float4*>(bias)[at]);
    if (kParts > 0 || bias != nullptr) kept[at] = v;
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    return v;
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    if (at < pieces) held[i] = visit(at);
  }
  for (int at = static_cast<int>(threadIdx.x) + kHeld * kThreads; at < pieces; at += kThreads) visit(at);
  if (out == nullptr) return;
  const float factor = rsqrtf(sum_over_block(squares, shared) / static_cast<float>(hidden) + epsilon);
  uint2* const to = reinterpret_cast<uint2*>(out) + std::int64_t{row} * pieces;
  const auto put = [&](int at, const float4& v, const float4& w) {
    to[at] = make_uint2(narrow(v.x * factor * w.x, v.y * factor * w.y),
                        narrow(v.z * factor * w.z, v.w * factor * w.w));
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    if (at < pieces) put(at, held[i], scale[i]);
  }
  for (int at = static_cast<int>(threadIdx.x) + kHeld * kThreads; at < pieces; at += kThreads)
    put(at, kept[at], reinterpret_cast<const float4*>(weight)[at]);
}

}  // namespace

cudaError_t norm_parts(const Launch& launch, float* x, const float* parts, int count, const float* bias,
                       const float* weight, float epsilon, void* out, int rows, int hidden) {
  using Kernel = void (*)(float*, const float*, const float*, const float*, float, Bf*, int);
  constexpr Kernel kKernels[] = {join_and_normalise<0>, join_and_normalise<1>, join_and_normalise<2>,
                                 join_and_normalise<3>, join_and_normalise<4>};
  static_assert(sizeof(kKernels) / sizeof(Kernel) == kMostParts + 1);
  if (count < 0 || count > kMostParts) return cudaErrorInvalidValue;
  return enqueue(launch, kKernels[count], dim3(static_cast<unsigned>(rows)), kThreads, 0, x, parts, bias,
                 weight, epsilon, static_cast<Bf*>(out), hidden);
}

}  // namespace mesh::engine::cuda
