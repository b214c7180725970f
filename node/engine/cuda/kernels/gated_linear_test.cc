#include "node/engine/cuda/kernels/gated_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "node/engine/cuda/kernels/device_array.h"

// Against the product in float64: a float32 sum of n products is off by at most n · 2⁻²⁴ · Σ|products|, a
// bfloat16 result by 2⁻⁸ of itself.
namespace mesh::engine::cuda {
namespace {

using Values = std::vector<double>;

struct GatedCase {
  int rows, inner, in;
  bool bias;
};

class Gated : public ::testing::TestWithParam<GatedCase> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
    cudaDeviceProp properties{};
    ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    if (!has_gated_linear(properties.major, properties.minor)) GTEST_SKIP() << "needs compute capability 9.0";
    launch_.processors = properties.multiProcessorCount;
    ASSERT_EQ(cudaStreamCreate(&launch_.stream), cudaSuccess);
  }
  void TearDown() override {
    if (launch_.stream != nullptr) cudaStreamDestroy(launch_.stream);
  }
  Values normal(std::size_t count, double deviation = 1) {
    std::normal_distribution<double> distribution(0, deviation);
    Values values(count);
    for (double& value : values) value = distribution(random_);
    return values;
  }

  Launch launch_;
  std::mt19937 random_{7};
};

TEST_P(Gated, GivesSiluOfGateTimesUp) {
  const GatedCase& c = GetParam();
  const auto rows = static_cast<std::size_t>(c.rows), inner = static_cast<std::size_t>(c.inner),
             in = static_cast<std::size_t>(c.in);
  const Values weight = rounded(normal(2 * inner * in, 0.05)), x = rounded(normal(rows * in)),
               bias = normal(2 * inner, 0.3);
  DeviceArray<std::uint16_t> weights(to_bf16(weight)), xs(to_bf16(x)), y(rows * inner);
  DeviceArray<float> biases(to_float(bias));
  ASSERT_EQ(gated_linear(launch_, {.weight = weights.data(),
                                   .bias = c.bias ? biases.data() : nullptr,
                                   .inner = c.inner,
                                   .in = c.in,
                                   .x = xs.data(),
                                   .rows = c.rows,
                                   .y = y.data()}),
            cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const Values actual = from_bf16(y.host());
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < inner; ++i) {
      const auto product = [&](std::size_t at, double& sum, double& off) {
        double size = 0;
        sum = c.bias ? bias[at] : 0;
        for (std::size_t k = 0; k < in; ++k) {
          const double term = weight[at * in + k] * x[row * in + k];
          sum += term, size += std::abs(term);
        }
        off = static_cast<double>(in) * 0x1p-24 * size + 1e-6;
      };
      double sum = 0, off = 0, up = 0, up_off = 0;
      product(i, sum, off);
      product(i + inner, up, up_off);
      const double gate = sum / (1 + std::exp(-sum)), expected = gate * up;
      off = 1.1 * off * std::abs(up) + up_off * std::abs(gate) + std::abs(expected) / 256 + 1e-6;
      ASSERT_NEAR(actual[row * inner + i], expected, off) << "row " << row << " output " << i;
    }
  }
}

// Blocks of 64, 56, 48 and 32 outputs on 132 multiprocessors, and more of them than places; above 128 rows
// tiles of 112, several turns.
INSTANTIATE_TEST_SUITE_P(Shapes, Gated,
                         ::testing::Values(GatedCase{1, 64, 64, false}, GatedCase{3, 200, 328, true},
                                           GatedCase{16, 1536, 576, false}, GatedCase{48, 440, 1032, true},
                                           GatedCase{64, 528, 704, false}, GatedCase{65, 264, 640, false},
                                           GatedCase{128, 768, 328, true}, GatedCase{5, 12032, 128, false},
                                           GatedCase{70, 14336, 64, true}, GatedCase{4, 16384, 72, false},
                                           GatedCase{9, 16800, 64, true}, GatedCase{100, 19200, 64, false},
                                           GatedCase{129, 40, 64, true}, GatedCase{300, 1000, 328, true},
                                           GatedCase{512, 4000, 64, false}));

class GatedOrder : public Gated {};

/// A launch that begins early must still see what the one ahead of it wrote.
TEST_P(GatedOrder, OverlappingLaunchesGiveTheSameBits) {
  const GatedCase& c = GetParam();
  const auto rows = static_cast<std::size_t>(c.rows), size = static_cast<std::size_t>(c.in);
  ASSERT_EQ(c.inner, c.in);  // rows go round
  DeviceArray<std::uint16_t> weights(to_bf16(rounded(normal(2 * size * size, 0.08)))), a(rows * size),
      b(rows * size);
  const std::vector<std::uint16_t> start = to_bf16(normal(rows * size));
  const auto run = [&](bool overlap) {
    launch_.overlap = overlap;
    cudaMemcpyAsync(a.data(), start.data(), start.size() * 2, cudaMemcpyHostToDevice, launch_.stream);
    for (int i = 0; i < 40; ++i) {
      EXPECT_EQ(gated_linear(launch_, {.weight = weights.data(),
                                       .inner = c.inner,
                                       .in = c.in,
                                       .x = i % 2 == 0 ? a.data() : b.data(),
                                       .rows = c.rows,
                                       .y = i % 2 == 0 ? b.data() : a.data()}),
                cudaSuccess);
    }
    EXPECT_EQ(cudaStreamSynchronize(launch_.stream), cudaSuccess);
    return a.host();
  };
  const std::vector<std::uint16_t> expected = run(false);
  ASSERT_NE(expected, start);
  EXPECT_EQ(run(true), expected);
  EXPECT_EQ(run(true), expected);
}

INSTANTIATE_TEST_SUITE_P(Shapes, GatedOrder,
                         ::testing::Values(GatedCase{1, 1024, 1024, false}, GatedCase{64, 1024, 1024, false},
                                           GatedCase{128, 1024, 1024, false},
                                           GatedCase{512, 1024, 1024, false}));

}  // namespace
}  // namespace mesh::engine::cuda
