#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "node/engine/ops/activation.h"
#include "node/engine/ops/embedding.h"
#include "node/engine/ops/kernels.h"
#include "node/engine/ops/layer_norm.h"
#include "node/engine/ops/ops_test_util.h"
#include "node/engine/ops/rms_norm.h"
#include "node/engine/ops/rotary.h"

namespace mesh::ops {
namespace {

class RowOps : public testing::TestWithParam<CpuPath> {};
INSTANTIATE_TEST_SUITE_P(Paths, RowOps, testing::ValuesIn(float32_paths()), path_name);

constexpr std::int64_t kWidths[] = {1, 3, 15, 16, 17, 64, 100, 577};
constexpr std::int64_t kRows = 37;

TEST_P(RowOps, RmsNormMatchesFormula) {
  const auto backend = backend_for(GetParam());
  for (const std::int64_t n : kWidths) {
    const auto x = random_values(kRows * n, 1), w = random_values(n, 2);
    std::vector<float> y(x.size());
    rms_norm(*backend, as_const(x, kRows), w.data(), 1e-5f, as_matrix(y, kRows), 1.0f);
    for (std::int64_t r = 0; r < kRows; ++r) {
      double squares = 0;
      for (std::int64_t i = 0; i < n; ++i) squares += std::pow(x[static_cast<std::size_t>(r * n + i)], 2.0);
      const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
      for (std::int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(r * n + i);
        const double exact = x[at] * factor * (1.0 + w[static_cast<std::size_t>(i)]);
        ASSERT_NEAR(y[at], exact, 1e-6 * (1 + std::abs(exact))) << n;
      }
    }
  }
}

TEST_P(RowOps, RmsNormOfHeadsIsRmsNormOfEachRun) {
  const auto backend = backend_for(GetParam());
  const auto x = random_values(4 * 3 * 20, 1), w = random_values(20, 2);
  auto y = x;
  rms_norm_heads(*backend, as_matrix(y, 4), 3, w.data(), 1e-6f);
  std::vector<float> expected(x.size());
  rms_norm(*backend, as_const(x, 12), w.data(), 1e-6f, as_matrix(expected, 12));
  EXPECT_EQ(y, expected);
}

TEST_P(RowOps, LayerNormMatchesFormula) {
  const auto backend = backend_for(GetParam());
  for (const std::int64_t n : kWidths) {
    auto x = random_values(kRows * n, 1);
    for (float& value : x) value += 10;  // a mean that a one-pass variance would suffer from
    const auto w = random_values(n, 2), b = random_values(n, 3);
    std::vector<float> y(x.size());
    layer_norm(*backend, as_const(x, kRows), w.data(), b.data(), 1e-5f, as_matrix(y, kRows));
    for (std::int64_t r = 0; r < kRows; ++r) {
      double mean = 0, variance = 0;
      for (std::int64_t i = 0; i < n; ++i)
        mean += x[static_cast<std::size_t>(r * n + i)] / static_cast<double>(n);
      for (std::int64_t i = 0; i < n; ++i) {
        variance += std::pow(x[static_cast<std::size_t>(r * n + i)] - mean, 2.0) / static_cast<double>(n);
      }
      for (std::int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(r * n + i), column = static_cast<std::size_t>(i);
        const double exact = (x[at] - mean) / std::sqrt(variance + 1e-5) * w[column] + b[column];
        ASSERT_NEAR(y[at], exact, 2e-5 * (1 + std::abs(exact))) << n;
      }
    }
  }
}

TEST_P(RowOps, RotaryTurnsPairsAndLeavesTheRest) {
  const auto backend = backend_for(GetParam());
  const std::int64_t heads = 3, dim = 50, half = 19, rows = 5;
  const auto x = random_values(rows * heads * dim, 1), angles = random_values(rows * half, 2, 3);
  std::vector<float> cos(angles.size()), sin(angles.size());
  for (std::size_t i = 0; i < angles.size(); ++i) {
    cos[i] = std::cos(angles[i]);
    sin[i] = std::sin(angles[i]);
  }
  auto y = x;
  rotary(*backend, as_matrix(y, rows), heads, as_const(cos, rows), as_const(sin, rows));
  for (std::int64_t run = 0; run < rows * heads; ++run) {
    const auto base = static_cast<std::size_t>(run * dim),
               angle = static_cast<std::size_t>(run / heads * half);
    for (std::size_t d = 0; d < 50; ++d) {
      double exact = x[base + d];
      if (d < 19) exact = x[base + d] * cos[angle + d] - x[base + d + 19] * sin[angle + d];
      if (d >= 19 && d < 38)
        exact = x[base + d] * cos[angle + d - 19] + x[base + d - 19] * sin[angle + d - 19];
      ASSERT_NEAR(y[base + d], exact, 1e-6);
    }
  }
}

TEST_P(RowOps, ActivationsMatchTheirFormulas) {
  const auto backend = backend_for(GetParam());
  std::vector<float> x;
  for (float v = -100; v<100; v += v> - 8 && v < 8 ? 0.01f : 1.0f) x.push_back(v);
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<float> gate_up = x, silu(x.size()), tanh_out = x, exact_out = x;
  for (std::size_t i = 0; i < x.size(); ++i) gate_up.push_back(static_cast<float>(i % 7) - 3);
  silu_mul(*backend, as_const(gate_up, 1), as_matrix(silu, 1));
  gelu_tanh(*backend, as_matrix(tanh_out, 1));
  gelu_exact(*backend, as_matrix(exact_out, 1));
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double v = x[at], up = gate_up[at + x.size()];
    const double tolerance = 1e-6 * (1 + std::abs(v));
    EXPECT_NEAR(silu[at], v / (1 + std::exp(-v)) * up, 3 * tolerance) << v;
    const double u = std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
    EXPECT_NEAR(tanh_out[at], 0.5 * v * (1 + std::tanh(u)), tolerance) << v;
    EXPECT_NEAR(exact_out[at], 0.5 * v * (1 + std::erf(v / std::sqrt(2.0))), tolerance) << v;
  }
}

TEST_P(RowOps, ExpIsWithinTwoUlpAndExactAtItsEnds) {
  const Kernels& kernels = backend_for(GetParam())->kernels();
  std::vector<float> x;
  for (float v = -87.3f; v < 88.7f; v += 0.0037f) x.push_back(v);
  auto y = x;
  kernels.exp(y.data(), static_cast<std::int64_t>(y.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    ASSERT_NEAR(y[i], exact, 2 * ulp) << x[i];
  }
  const float infinity = std::numeric_limits<float>::infinity();
  float ends[5] = {0, -infinity, infinity, -200, NAN};
  kernels.exp(ends, 5);
  EXPECT_EQ(ends[0], 1.0f);
  EXPECT_EQ(ends[1], 0.0f);
  EXPECT_EQ(ends[2], infinity);
  EXPECT_EQ(ends[3], 0.0f);
  EXPECT_TRUE(std::isnan(ends[4]));
}

TEST_P(RowOps, Bf16RoundsToNearestEvenAndKeepsSpecials) {
  const auto backend = backend_for(GetParam());
  const float infinity = std::numeric_limits<float>::infinity();
  // Input and the bits that rounding to nearest even gives.
  const std::vector<std::pair<float, std::uint16_t>> cases = {
      {1.0f, 0x3F80},      {1.00390625f, 0x3F80},   {1.01171875f, 0x3F82}, {1.00390637f, 0x3F81},
      {-2.5f, 0xC020},     {0.0f, 0x0000},          {-0.0f, 0x8000},       {infinity, 0x7F80},
      {-infinity, 0xFF80}, {3.4028235e38f, 0x7F80}, {1e-40f, 0x0001}};
  std::vector<float> x;
  for (int copies = 0; copies < 3; ++copies) {
    for (const auto& [value, bits] : cases) x.push_back(value);
  }
  std::vector<char> out(1 + x.size() * 2);
  to_bf16(*backend, as_const(x, 3), out.data() + 1);
  std::vector<float> back(x.size());
  from_bf16(*backend, out.data() + 1, as_matrix(back, 3));
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, out.data() + 1 + 2 * i, 2);
    EXPECT_EQ(bits, cases[i % cases.size()].second) << x[i];
    EXPECT_EQ(to_bf16(x[i]).bits, bits) << x[i];
    EXPECT_EQ(back[i], to_float(Bf16{bits}));
  }
  const float nan = std::bit_cast<float>(0x7F800001U);
  std::uint16_t bits;
  to_bf16(*backend, {&nan, 1, 1}, &bits);
  EXPECT_TRUE(std::isnan(to_float(Bf16{bits})));
  EXPECT_TRUE(std::isnan(to_float(to_bf16(nan))));
}

TEST_P(RowOps, FindsAnyValueThatIsNotFinite) {
  const auto backend = backend_for(GetParam());
  auto x = random_values(3 * 101, 1);
  EXPECT_TRUE(all_finite(*backend, as_const(x, 3)));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float before = std::exchange(x[i], i % 2 == 0 ? NAN : -std::numeric_limits<float>::infinity());
    EXPECT_FALSE(all_finite(*backend, as_const(x, 3))) << i;
    x[i] = before;
  }
}

TEST_P(RowOps, RowsDoNotDependOnThreads) {
  const std::int64_t rows = 200, n = 577;
  const auto x = random_values(rows * n, 1), w = random_values(n, 2);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 4}) {
    const auto backend = backend_for(GetParam(), threads);
    results.emplace_back(x.size());
    rms_norm(*backend, as_const(x, rows), w.data(), 1e-5f, as_matrix(results.back(), rows));
    add(*backend, as_matrix(results.back(), rows), as_const(x, rows));
    gelu_tanh(*backend, as_matrix(results.back(), rows));
    EXPECT_EQ(results.back(), results.front());
  }
}

TEST(Elementwise, HalfToFloatCoversSubnormalsAndSpecials) {
  EXPECT_EQ(half_to_float(0x3C00), 1.0f);
  EXPECT_EQ(half_to_float(0xC100), -2.5f);
  EXPECT_EQ(half_to_float(0x7BFF), 65504.0f);
  EXPECT_EQ(half_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(half_to_float(0x83FF), -1023 * 0x1p-24f);
  EXPECT_EQ(half_to_float(0xFC00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(half_to_float(0x7E00)));
}

TEST(Elementwise, ArgmaxTakesTheLowestOfEqualsAndNoNan) {
  const float x[] = {NAN, 1, 3, NAN, 3, 2};
  EXPECT_EQ(argmax(x, 6), 2);
  EXPECT_EQ(argmax(x, 1), 0);
  const float hidden[] = {NAN, -INFINITY, -INFINITY};
  EXPECT_EQ(argmax(hidden, 3), 1);
  for (std::int64_t place = 0; place < 71; ++place) {
    auto many = random_values(71, 3);
    for (std::int64_t i = place; i < 71; i += 7) many[static_cast<std::size_t>(i)] = 9;
    EXPECT_EQ(argmax(many.data(), 71), place);
  }
}

TEST(Elementwise, LogSumExpSurvivesLargeValues) {
  const float x[] = {1000, 1000, -1000};
  EXPECT_NEAR(log_sum_exp(x, 3), 1000 + std::log(2.0), 1e-6);
  const auto many = random_values(49153, 8, 5);
  double exact = 0;
  for (const float value : many) exact += std::exp(static_cast<double>(value));
  EXPECT_NEAR(log_sum_exp(many.data(), 49153), std::log(exact), 1e-6);
  const float lonely[] = {-std::numeric_limits<float>::infinity(), -5};
  EXPECT_EQ(log_sum_exp(lonely, 2), -5);
}

TEST(Embedding, GathersRowsOfEachElementType) {
  const std::vector<float> table = {1, 2, 3, 4, 5, 6};
  const std::int32_t ids[] = {2, 0};
  std::vector<float> out(4);
  embedding(table.data(), Element::kF32, ids, as_matrix(out, 2));
  EXPECT_THAT(out, testing::ElementsAre(5, 6, 1, 2));
  const std::uint16_t bf16[] = {0x3F80, 0x4000, 0x4040, 0x4080};  // 1 2 3 4
  const std::int32_t second[] = {1, 1};
  embedding(bf16, Element::kBf16, second, as_matrix(out, 2));
  EXPECT_THAT(out, testing::ElementsAre(3, 4, 3, 4));
}

}  // namespace
}  // namespace mesh::ops
