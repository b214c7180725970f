#include "tests/bench/gpu_limits.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace mesh::bench {
namespace {

constexpr std::size_t kBytes = std::size_t{8} << 30, kVectors = kBytes / sizeof(uint4);
constexpr int kAtOnce = 8;

__global__ void fill(uint4* values) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < kVectors;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const auto x = static_cast<std::uint32_t>(i * 2654435761u);
    values[i] = make_uint4(x, x ^ 0x9e3779b9u, x * 747796405u, ~x);
  }
}

__global__ void read(const uint4* values, std::uint32_t* sink) {
  std::uint32_t sum = 0;
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  for (; i + (kAtOnce - 1) * step < kVectors; i += kAtOnce * step) {
    uint4 group[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) group[k] = __ldcs(values + i + k * step);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) sum += group[k].x ^ group[k].y ^ group[k].z ^ group[k].w;
  }
  for (; i < kVectors; i += step) sum += values[i].x;
  if (sum == 0x12345678u) *sink = sum;  // nearly never; keeps the loads
}

class Reader final : public GpuReadLimit {
 public:
  bool start() {
    int processors = 0;
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
    blocks_ = static_cast<unsigned>(processors) * 16;
    if (cudaMalloc(&memory_, kBytes + 256) != cudaSuccess) return false;
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
    fill<<<4096, 256>>>(static_cast<uint4*>(memory_));
    return cudaDeviceSynchronize() == cudaSuccess;
  }
  ~Reader() override {
    cudaFree(memory_);
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }
  void pass() override {
    auto* values = static_cast<uint4*>(memory_);
    cudaEventRecord(begin_);
    read<<<blocks_, 256>>>(values, reinterpret_cast<std::uint32_t*>(values + kVectors));
    cudaEventRecord(end_);
    float milliseconds = 0;
    if (cudaEventSynchronize(end_) == cudaSuccess &&
        cudaEventElapsedTime(&milliseconds, begin_, end_) == cudaSuccess) {
      best_ = std::max(best_, static_cast<double>(kBytes) / (milliseconds * 1e-3));
    }
  }
  double bytes_per_second() const override { return best_; }

 private:
  void* memory_ = nullptr;
  unsigned blocks_ = 0;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  double best_ = 0;
};

}  // namespace

std::unique_ptr<GpuReadLimit> GpuReadLimit::create() {
  auto reader = std::make_unique<Reader>();
  return reader->start() ? std::move(reader) : nullptr;
}

}  // namespace mesh::bench
