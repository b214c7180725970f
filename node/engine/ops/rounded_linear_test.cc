// Products of rounded inputs: PanelOrder::kPairs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "node/engine/ops/kernels.h"
#include "node/engine/ops/matrix_test_util.h"
#include "node/engine/ops/rounded_inputs.h"

namespace mesh::ops {
namespace {

bool has_dot(CpuPath path, MatrixFormat format) {
  const auto backend = backend_for(path);
  return backend->kernels().dots[static_cast<std::size_t>(format)].dot != nullptr;
}

struct Weights {
  std::vector<float> meant;  // [n, k]
  PackedLinear packed;
};

Weights random_weights(MatrixFormat format, std::int64_t n, std::int64_t k,
                       const std::vector<float>& bias = {}) {
  const PackOptions pairs{PanelOrder::kPairs, nullptr};
  if (format != MatrixFormat::kBf16) {
    Quantised made = random_matrix(format, n, k, bias, pairs);
    return {std::move(made.weight), std::move(made.packed)};
  }
  Weights made{rounded_to_bf16(random_values(n * k, 1)), {}};
  auto packer = LinearPacker::create(n, k, Element::kBf16, pairs);
  EXPECT_TRUE(packer->append_rows(made.meant.data(), Element::kF32, n, k).ok());
  if (!bias.empty()) {
    EXPECT_TRUE(packer->set_bias(0, bias).ok());
  }
  made.packed = *packer->finish();
  return made;
}

using Parameter = std::tuple<CpuPath, MatrixFormat>;
/// The paths of this machine with the formats that they round for.
std::vector<Parameter> parameters() {
  std::vector<Parameter> list;
  for (const CpuPath path : available_cpu_paths()) {
    for (const MatrixFormat format :
         {MatrixFormat::kBf16, MatrixFormat::kInt8, MatrixFormat::kNf4, MatrixFormat::kFp8}) {
      if (has_dot(path, format)) list.emplace_back(path, format);
    }
  }
  return list;
}

class RoundedLinear : public testing::TestWithParam<Parameter> {
 protected:
  bool integers() const { return format_ == MatrixFormat::kInt8 || format_ == MatrixFormat::kNf4; }

  const CpuPath path_ = std::get<0>(GetParam());
  const MatrixFormat format_ = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Paths, RoundedLinear, testing::ValuesIn(parameters()), [](const auto& info) {
  return std::string(to_string(std::get<0>(info.param))) + std::string(format_name(std::get<1>(info.param)));
});

/// What an input of a chain, whose largest has the size `largest`, counts as.
double rounded(MatrixFormat format, float x, float largest) {
  if (format == MatrixFormat::kBf16 || format == MatrixFormat::kFp8) return to_float(to_bf16(x));
  return std::nearbyint(x * (kInputSteps / largest)) * static_cast<double>(largest / kInputSteps);
}

TEST_P(RoundedLinear, IsTheDoubleProductOfTheRoundedInputs) {
  const auto backend = backend_for(path_);
  for (const std::int64_t m : {1, 2, 3, 4, 5, 13, 14, 27}) {
    for (const auto& [n, k] :
         {std::pair<std::int64_t, std::int64_t>{1, 8}, {31, 64}, {33, 320}, {160, 96}, {299, 520}}) {
      SCOPED_TRACE(testing::Message() << m << "×" << n << "×" << k);
      const auto bias = m % 2 == 0 ? random_values(n, 2) : std::vector<float>();
      const Weights weights = random_weights(format_, n, k, bias);
      const auto x = random_values(m * k, 3);
      std::vector<float> y(static_cast<std::size_t>(m * n), NAN);
      linear(*backend, weights.packed, as_const(x, m), as_matrix(y, m));
      for (std::int64_t row = 0; row < m; ++row) {
        const float* in = x.data() + row * k;
        std::vector<double> seen(static_cast<std::size_t>(k));
        for (std::int64_t i = 0; i < k; ++i) {
          float largest = 0;
          for (std::int64_t j = i / 256 * 256; j < std::min(k, i / 256 * 256 + 256); ++j)
            largest = std::max(largest, std::abs(in[j]));
          seen[static_cast<std::size_t>(i)] = rounded(format_, in[i], largest);
        }
        for (std::int64_t column = 0; column < n; ++column) {
          double exact = bias.empty() ? 0.0 : bias[static_cast<std::size_t>(column)];
          double size = std::abs(exact);
          for (std::int64_t i = 0; i < k; ++i) {
            const double term =
                seen[static_cast<std::size_t>(i)] * weights.meant[static_cast<std::size_t>(column * k + i)];
            exact += term;
            size += std::abs(term);
          }
          // NF4 values are integers within 1.3e-4 of the largest; the smallest but zero is 0.08.
          const double coded = format_ == MatrixFormat::kNf4 ? 1.3e-4 / 0.0796 : 0;
          const double tolerance = ((std::sqrt(static_cast<double>(k)) + 3) * 6e-8 + coded) * size;
          ASSERT_NEAR(y[static_cast<std::size_t>(row * n + column)], exact, tolerance)
              << "row " << row << " column " << column;
        }
      }
    }
  }
}

TEST_P(RoundedLinear, RowsAreThoseThatWerePacked) {
  const std::int64_t n = 70, k = 192;
  const Weights weights = random_weights(format_, n, k);
  std::vector<float> row(k);
  for (std::int64_t i = 0; i < n; ++i) {
    linear_row(weights.packed, i, row.data());
    EXPECT_TRUE(same_bits(row.data(), weights.meant.data() + i * k, k)) << i;
  }
}

TEST_P(RoundedLinear, AddsToWhatIsThereAndWritesNothingBeside) {
  const auto backend = backend_for(path_);
  const std::int64_t m = 6, n = 130, k = 576;
  const Weights weights = random_weights(format_, n, k, random_values(n, 5));
  const auto x = random_values(m * k, 2, 1e-3f);
  std::vector<float> plain(m * n), added(m * 160, 100.0f);
  linear(*backend, weights.packed, as_const(x, m), as_matrix(plain, m));
  const Matrix out(added.data(), m, n, 160);
  linear(*backend, weights.packed, as_const(x, m), out, Store::kAdd);
  for (std::int64_t row = 0; row < m; ++row) {
    for (std::int64_t i = 0; i < n; ++i)
      EXPECT_NEAR(out.row(row)[i], plain[static_cast<std::size_t>(row * n + i)] + 100.0f, 2e-4);
    for (std::int64_t i = n; i < 160; ++i) EXPECT_EQ(out.row(row)[i], 100.0f);
  }
}

TEST_P(RoundedLinear, RowsDoNotDependOnTheirNeighboursOrOnThreads) {
  const std::int64_t most = 30, n = 300, k = 640;
  const auto x = random_values(most * k, 4);
  const Weights weights = random_weights(format_, n, k, random_values(n, 2));
  const auto one_thread = backend_for(path_, 1);
  std::vector<float> alone(most * n);
  for (std::int64_t row = 0; row < most; ++row) {
    linear(*one_thread, weights.packed, {x.data() + row * k, 1, k}, {alone.data() + row * n, 1, n});
  }
  for (const int threads : {1, 2, 3}) {
    const auto backend = backend_for(path_, threads);
    for (std::int64_t m = 1; m <= most; ++m) {
      std::vector<float> y(static_cast<std::size_t>(m * n));
      linear(*backend, weights.packed, {x.data(), m, k}, {y.data(), m, n});
      ASSERT_TRUE(same_bits(y.data(), alone.data(), m * n)) << m << " rows, " << threads << " threads";
    }
  }
}

TEST_P(RoundedLinear, IntegerSumsHaveTheSameBitsOnEveryPath) {
  if (!integers()) return;
  const std::int64_t m = 17, n = 96, k = 840;
  const auto x = random_values(m * k, 4);
  const Weights weights = random_weights(format_, n, k, random_values(n, 2));
  std::vector<float> here(m * n), portable(m * n);
  linear(*backend_for(path_), weights.packed, as_const(x, m), as_matrix(here, m));
  linear(*backend_for(CpuPath::kPortable), weights.packed, as_const(x, m), as_matrix(portable, m));
  EXPECT_TRUE(same_bits(here.data(), portable.data(), m * n));
}

TEST_P(RoundedLinear, TheLargestSumsDoNotOverflow) {
  const auto backend = backend_for(path_);
  const std::int64_t k = 512;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(k));
  std::vector<float> scales(8, 1.0f), meant(static_cast<std::size_t>(k));
  const std::uint8_t largest[] = {0, 0, 0x80, 0xFF, 0x7E};  // −128, 1 and 1, 448
  if (format_ == MatrixFormat::kBf16) return;
  std::fill(codes.begin(), codes.end(), largest[static_cast<std::size_t>(format_)]);
  dequantise_row(format_, codes.data(), scales.data(), k, meant.data());
  auto packer = QuantisedPacker::create(1, k, format_, {PanelOrder::kPairs, nullptr});
  ASSERT_TRUE(packer->append(codes.data(), scales.data(), 1).ok());
  const std::vector<float> x(static_cast<std::size_t>(k), -3.0f);
  float y = 0;
  linear(*backend, *packer->finish(), as_const(x, 1), {&y, 1, 1});
  const double exact = -3.0 * meant[0] * static_cast<double>(k);
  EXPECT_NEAR(y, exact, 1e-6 * std::abs(exact));
}

TEST_P(RoundedLinear, WhatIsNotFiniteStaysInItsRowAndIsSeen) {
  const auto backend = backend_for(path_);
  const std::int64_t m = 3, n = 32, k = 512;
  const Weights weights = random_weights(format_, n, k);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto x = random_values(m * k, 4);
    std::fill(x.begin(), x.begin() + k, 0.0f);
    x[k + 300] = bad;
    std::vector<float> y(m * n);
    linear(*backend, weights.packed, as_const(x, m), as_matrix(y, m));
    for (std::int64_t i = 0; i < n; ++i) {
      EXPECT_EQ(y[static_cast<std::size_t>(i)], 0.0f);
      EXPECT_FALSE(std::isfinite(y[static_cast<std::size_t>(n + i)]));
      EXPECT_TRUE(std::isfinite(y[static_cast<std::size_t>(2 * n + i)]));
    }
  }
}

TEST(PackOptions, PairsNeedRowsOfWholeSteps) {
  const PackOptions pairs{PanelOrder::kPairs, nullptr};
  EXPECT_FALSE(LinearPacker::create(4, 7, Element::kBf16, pairs).ok());
  EXPECT_FALSE(LinearPacker::create(4, 8, Element::kF32, pairs).ok());
  EXPECT_FALSE(QuantisedPacker::create(4, 7, MatrixFormat::kInt8, pairs).ok());
  EXPECT_FALSE(QuantisedPacker::create(4, 12, MatrixFormat::kNf4, pairs).ok());
  EXPECT_TRUE(QuantisedPacker::create(4, 16, MatrixFormat::kNf4, pairs).ok());
}

TEST(CpuBackend, RoundsInputsOnlyWhenAskedToAndWhereRowsFit) {
  for (const CpuPath path : available_cpu_paths()) {
    const auto exact = *CpuBackend::create({1, path, false});
    const auto rounding = *CpuBackend::create({1, path, true});
    for (const MatrixFormat format : {MatrixFormat::kF32, MatrixFormat::kBf16, MatrixFormat::kInt8,
                                      MatrixFormat::kNf4, MatrixFormat::kFp8}) {
      EXPECT_EQ(exact->order_of(format, 64), PanelOrder::kOutputs);
      EXPECT_EQ(rounding->order_of(format, 64) == PanelOrder::kPairs, has_dot(path, format));
      EXPECT_EQ(rounding->order_of(format, 65), PanelOrder::kOutputs);
    }
    EXPECT_EQ(rounding->order_of(MatrixFormat::kNf4, 68), PanelOrder::kOutputs);
  }
}

TEST(Nf4Integers, AreTheValuesToNearest) {
  for (int i = 0; i < 16; ++i) EXPECT_EQ(kNf4Integers[i], std::lround(kNf4Values[i] * kNf4One)) << i;
  EXPECT_LT(64.0 * kInputSteps * kNf4One, 0x1p31);
  EXPECT_LT(256.0 * kInputSteps * 128, 0x1p31);
}

}  // namespace
}  // namespace mesh::ops
