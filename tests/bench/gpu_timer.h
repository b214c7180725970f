#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "node/engine/cuda/kernels/kernels.h"

/// Memory and times of single kernels; a CUDA error ends the program.
namespace mesh::bench {
using namespace engine::cuda;

inline void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "{}\n", cudaGetErrorString(error));
  std::exit(1);
}

inline void* take(std::size_t bytes) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, bytes));
  must(cudaMemset(memory, 0, bytes));
  return memory;
}

inline void* random(std::size_t values, bool bfloat16, float deviation = 1) {
  void* memory = take(values * (bfloat16 ? 2 : 4));
  must(fill_normal(nullptr, memory, bfloat16, static_cast<std::int64_t>(values), values, deviation));
  return memory;
}

template <class T>
T* on_gpu(const std::vector<T>& values) {
  void* memory = take(values.size() * sizeof(T));
  must(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(memory);
}

class Bench {
 public:
  Bench() {
    must(cudaStreamCreate(&stream_));
    must(cudaEventCreate(&begin_));
    must(cudaEventCreate(&end_));
    int major = 0;
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    must(cudaDeviceGetAttribute(&launch_.processors, cudaDevAttrMultiProcessorCount, 0));
    launch_.stream = stream_;
    launch_.overlap = major >= 9;
    launch_.tensor_cores = major >= 8;
  }
  const Launch& launch() const { return launch_; }
  void use_tensor_cores(bool use) { launch_.tensor_cores = use; }

  /// `enqueue(i)` for i = 0 … count − 1 as one graph; the best of five replays, for one i.
  void measure(const std::string& what, double bytes, int count,
               const std::function<cudaError_t(int)>& enqueue) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    must(enqueue(0));
    must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < count; ++i) must(enqueue(i));
    must(cudaStreamEndCapture(stream_, &graph));
    must(cudaGraphInstantiate(&executable, graph, 0));
    float best = 1e9f;
    for (int round = 0; round < 6; ++round) {
      must(cudaEventRecord(begin_, stream_));
      must(cudaGraphLaunch(executable, stream_));
      must(cudaEventRecord(end_, stream_));
      must(cudaEventSynchronize(end_));
      float milliseconds = 0;
      must(cudaEventElapsedTime(&milliseconds, begin_, end_));
      if (round > 0) best = std::min(best, milliseconds);
    }
    must(cudaGraphExecDestroy(executable));
    must(cudaGraphDestroy(graph));
    const double microseconds = best * 1e3 / count;
    fmt::print("{:48} {:8.2f} us{}\n", what, microseconds,
               bytes > 0 ? fmt::format("  {:.2f} TB/s", bytes / microseconds * 1e-6) : "");
  }

 private:
  Launch launch_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace mesh::bench
