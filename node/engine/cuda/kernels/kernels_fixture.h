#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "node/engine/cuda/kernels/device_array.h"
#include "node/engine/cuda/kernels/kernels.h"

/// What the kernels' tests share: random values and the formulas in float64.
namespace mesh::engine::cuda {

using Values = std::vector<double>;
inline constexpr double kRound = 1.0 / 256;

class Kernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
    cudaDeviceProp properties{};
    ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    launch_ = {nullptr, false, properties.multiProcessorCount};
    major_ = properties.major;
  }
  static void done(cudaError_t error) {
    ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  Values normal(std::size_t count, double deviation = 1) {
    std::normal_distribution<double> distribution(0, deviation);
    Values values(count);
    for (double& value : values) value = distribution(random_);
    return values;
  }

  Launch launch_;
  int major_ = 0;
  std::mt19937 random_{7};
};

inline Values normed(const Values& x, const Values& weight, double epsilon) {
  Values out(x.size());
  const std::size_t width = weight.size();
  for (std::size_t row = 0; row < x.size() / width; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) squares += x[row * width + i] * x[row * width + i];
    const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (std::size_t i = 0; i < width; ++i) out[row * width + i] = x[row * width + i] * factor * weight[i];
  }
  return out;
}

inline double silu(double x) {
  return x / (1 + std::exp(-x));
}

}  // namespace mesh::engine::cuda
