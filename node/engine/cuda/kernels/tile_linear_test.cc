#include "node/engine/cuda/kernels/tile_linear.h"

#include "node/engine/cuda/kernels/kernels_fixture.h"

// Against the product in float64: a float32 sum of n products is off by at most n · 2⁻²⁴ · Σ|products|.
namespace mesh::engine::cuda {
namespace {

struct TileCase {
  int rows, out, in, parts;
};

class Tiles : public Kernels, public ::testing::WithParamInterface<TileCase> {
 protected:
  void SetUp() override {
    Kernels::SetUp();
    if (!IsSkipped() && major_ != 9) GTEST_SKIP() << "needs compute capability 9.0";
  }
};

TEST_P(Tiles, PartsAreTheProductsOfEqualRunsOfInputs) {
  const TileCase& c = GetParam();
  const auto rows = static_cast<std::size_t>(c.rows), out = static_cast<std::size_t>(c.out),
             in = static_cast<std::size_t>(c.in), parts = static_cast<std::size_t>(c.parts);
  const Values weight = rounded(normal(out * in, 0.05)), x = rounded(normal(rows * in));
  DeviceArray<std::uint16_t> weights(to_bf16(weight)), xs(to_bf16(x));
  DeviceArray<float> y(parts * rows * out);
  done(tile_linear(launch_, {weights.data(), c.out, c.in, xs.data(), c.rows, y.data(), c.parts}));
  const Values actual = from_float(y.host());
  const std::size_t pieces = (in + 63) / 64;  // runs are whole pieces of 64 inputs
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t first = pieces * part / parts * 64,
                      end = std::min(in, pieces * (part + 1) / parts * 64);
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t i = 0; i < out; ++i) {
        double sum = 0, size = 0;
        for (std::size_t k = first; k < end; ++k) {
          const double term = weight[i * in + k] * x[row * in + k];
          sum += term, size += std::abs(term);
        }
        ASSERT_NEAR(actual[(part * rows + row) * out + i], sum,
                    static_cast<double>(in) * 0x1p-24 * size + 1e-6)
            << "part " << part << " row " << row << " output " << i;
      }
    }
  }
}

// Tiles of 48, 128, 192 and 256 outputs on 132 multiprocessors, several turns, tails of rows, outputs,
// inputs.
INSTANTIATE_TEST_SUITE_P(Shapes, Tiles,
                         ::testing::Values(TileCase{3, 200, 328, 1}, TileCase{16, 6144, 136, 1},
                                           TileCase{33, 4096, 520, 4}, TileCase{64, 1000, 1032, 3},
                                           TileCase{65, 6144, 72, 1}, TileCase{128, 4096, 520, 4},
                                           TileCase{100, 17000, 64, 1}, TileCase{129, 200, 328, 2},
                                           TileCase{300, 1000, 264, 1}, TileCase{512, 6144, 64, 1},
                                           TileCase{512, 4096, 128, 2}, TileCase{1024, 520, 136, 2}));

/// Of an 8B Llama on 132 multiprocessors: a tile for almost each of them.
TEST(TileParts, BusyAlmostAllMultiprocessors) {
  const Launch launch{.processors = 132};
  EXPECT_EQ(tile_parts(launch, 4096, 4096, 64, 1024), 4);
  EXPECT_EQ(tile_parts(launch, 4096, 14336, 128, 1024), 4);
  EXPECT_EQ(tile_parts(launch, 4096, 14336, 512, 1024), 2);
  EXPECT_EQ(tile_parts(launch, 4096, 14336, 1024, 1024), 1);
}

TEST(TileParts, KeepWithinTheRoomAndTheInputs) {
  const Launch launch{.processors = 132};
  EXPECT_EQ(tile_parts(launch, 576, 4096, 512, 1024), 2);
  EXPECT_EQ(tile_parts(launch, 576, 4096, 1024, 1024), 1);
  EXPECT_EQ(tile_parts(launch, 576, 64, 64, 1024), 1);
}

struct JoinCase {
  int rows, hidden, parts;
  bool bias, normalise;
};

class Joins : public Kernels, public ::testing::WithParamInterface<JoinCase> {};

TEST_P(Joins, AddsPartsAndBiasThenNormalises) {
  const JoinCase& c = GetParam();
  const auto rows = static_cast<std::size_t>(c.rows), hidden = static_cast<std::size_t>(c.hidden),
             parts = static_cast<std::size_t>(c.parts);
  Values x = normal(rows * hidden, 2);
  const Values more = normal(std::max<std::size_t>(parts, 1) * rows * hidden), bias = normal(hidden),
               weight = normal(hidden);
  DeviceArray<float> xs(to_float(x)), mores(to_float(more)), biases(to_float(bias)),
      weights(to_float(weight));
  DeviceArray<std::uint16_t> out(rows * hidden);
  done(norm_parts(launch_, xs.data(), mores.data(), c.parts, c.bias ? biases.data() : nullptr, weights.data(),
                  1e-5f, c.normalise ? out.data() : nullptr, c.rows, c.hidden));
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t part = 0; part < parts; ++part) x[i] += more[part * x.size() + i];
    if (c.bias) x[i] += bias[i % hidden];
  }
  const Values kept = from_float(xs.host()), actual = from_bf16(out.host()),
               expected = normed(x, weight, 1e-5);
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(kept[i], x[i], 1e-5 * (1 + std::abs(x[i]))) << i;
    if (!c.normalise) continue;
    ASSERT_NEAR(actual[i], expected[i], std::abs(expected[i]) * kRound + 1e-4) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Joins,
                         ::testing::Values(JoinCase{3, 64, 0, false, true}, JoinCase{5, 576, 1, true, true},
                                           JoinCase{64, 4096, 4, false, true},
                                           JoinCase{2, 8192, 2, true, true}, JoinCase{2, 8200, 3, true, true},
                                           JoinCase{7, 1032, 4, true, false},
                                           JoinCase{3, 576, 0, true, false}));

class TileOrder : public Tiles {};

/// A launch that begins early must still see what the one ahead of it wrote.
TEST_P(TileOrder, OverlappingLaunchesGiveTheSameBits) {
  const TileCase& c = GetParam();
  const auto rows = static_cast<std::size_t>(c.rows), size = static_cast<std::size_t>(c.out);
  ASSERT_EQ(c.out, c.in);  // rows go round
  ASSERT_EQ(cudaStreamCreate(&launch_.stream), cudaSuccess);
  const std::vector<std::uint16_t> weight = to_bf16(normal(size * size, 0.05)),
                                   start = to_bf16(normal(rows * size));
  const std::vector<float> ones(size, 1.0f);
  DeviceArray<std::uint16_t> weights(weight), normed(rows * size);
  DeviceArray<float> x(rows * size), y(static_cast<std::size_t>(c.parts) * rows * size), scale(ones);
  const auto run = [&](bool overlap) {
    launch_.overlap = overlap;
    cudaMemsetAsync(x.data(), 0, rows * size * 4, launch_.stream);
    cudaMemcpyAsync(normed.data(), start.data(), start.size() * 2, cudaMemcpyHostToDevice, launch_.stream);
    for (int i = 0; i < 30; ++i) {
      EXPECT_EQ(tile_linear(launch_, {weights.data(), c.out, c.in, normed.data(), c.rows, y.data(), c.parts}),
                cudaSuccess);
      EXPECT_EQ(norm_parts(launch_, x.data(), y.data(), c.parts, nullptr, scale.data(), 1e-5f, normed.data(),
                           c.rows, c.out),
                cudaSuccess);
    }
    EXPECT_EQ(cudaStreamSynchronize(launch_.stream), cudaSuccess);
    return normed.host();
  };
  const std::vector<std::uint16_t> expected = run(false);
  ASSERT_NE(expected, start);
  EXPECT_EQ(run(true), expected);
  EXPECT_EQ(run(true), expected);
  cudaStreamDestroy(launch_.stream);
  launch_.stream = nullptr;
}

INSTANTIATE_TEST_SUITE_P(Shapes, TileOrder,
                         ::testing::Values(TileCase{16, 1024, 1024, 4}, TileCase{64, 1024, 1024, 1},
                                           TileCase{128, 1024, 1024, 4}, TileCase{512, 1024, 1024, 2}));

}  // namespace
}  // namespace mesh::engine::cuda
