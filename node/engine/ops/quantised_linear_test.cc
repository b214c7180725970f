#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "node/engine/ops/matrix_test_util.h"

namespace mesh::ops {
namespace {

using Parameter = std::tuple<CpuPath, MatrixFormat>;
class QuantisedLinear : public testing::TestWithParam<Parameter> {
 protected:
  const CpuPath path_ = std::get<0>(GetParam());
  const MatrixFormat format_ = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Paths, QuantisedLinear,
                         testing::Combine(testing::ValuesIn(float32_paths()),
                                          testing::Values(MatrixFormat::kInt8, MatrixFormat::kNf4,
                                                          MatrixFormat::kFp8)),
                         [](const auto& info) {
                           return std::string(to_string(std::get<0>(info.param))) +
                                  std::string(format_name(std::get<1>(info.param)));
                         });

TEST_P(QuantisedLinear, MatchesTheDoubleProductWithTheWeightsThatTheCodesMean) {
  const auto backend = backend_for(path_);
  for (const std::int64_t m : {1, 2, 3, 5, 7, 13, 14, 27}) {
    for (const auto& [n, k] :
         {std::pair<std::int64_t, std::int64_t>{1, 4}, {31, 64}, {33, 320}, {160, 96}, {299, 516}}) {
      SCOPED_TRACE(testing::Message() << m << "×" << n << "×" << k);
      const auto bias = m % 2 == 0 ? random_values(n, 2) : std::vector<float>();
      const Quantised matrix = random_matrix(format_, n, k, bias);
      const auto x = random_values(m * k, 3);
      std::vector<float> y(static_cast<std::size_t>(m * n), NAN);
      linear(*backend, matrix.packed, as_const(x, m), as_matrix(y, m));
      for (std::int64_t row = 0; row < m; ++row) {
        for (std::int64_t column = 0; column < n; ++column) {
          double exact = bias.empty() ? 0.0 : bias[static_cast<std::size_t>(column)];
          double size = std::abs(exact);
          for (std::int64_t i = 0; i < k; ++i) {
            const double term = static_cast<double>(x[static_cast<std::size_t>(row * k + i)]) *
                                matrix.weight[static_cast<std::size_t>(column * k + i)];
            exact += term;
            size += std::abs(term);
          }
          const double tolerance = (std::sqrt(static_cast<double>(k)) + 2) * 6e-8 * size;
          ASSERT_NEAR(y[static_cast<std::size_t>(row * n + column)], exact, tolerance)
              << "row " << row << " column " << column;
        }
      }
    }
  }
}

TEST_P(QuantisedLinear, RowsAreThoseThatTheCodesMeanBitForBit) {
  const std::int64_t n = 70, k = 192;
  const Quantised matrix = random_matrix(format_, n, k);
  std::vector<float> row(k);
  for (std::int64_t i = 0; i < n; ++i) {
    linear_row(matrix.packed, i, row.data());
    EXPECT_TRUE(same_bits(row.data(), matrix.weight.data() + i * k, k)) << i;
  }
}

TEST_P(QuantisedLinear, AddsToWhatIsThere) {
  const auto backend = backend_for(path_);
  const std::int64_t m = 5, n = 130, k = 576;
  const Quantised matrix = random_matrix(format_, n, k, random_values(n, 5));
  const auto x = random_values(m * k, 2, 1e-3f);
  std::vector<float> plain(m * n), added(m * n, 100.0f);
  linear(*backend, matrix.packed, as_const(x, m), as_matrix(plain, m));
  linear(*backend, matrix.packed, as_const(x, m), as_matrix(added, m), Store::kAdd);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(added[i], plain[i] + 100.0f, 1e-4);
}

TEST_P(QuantisedLinear, RowsDoNotDependOnTheirNeighboursOrOnThreads) {
  const std::int64_t most = 60, n = 300, k = 640;
  const auto x = random_values(most * k, 4);
  const Quantised matrix = random_matrix(format_, n, k, random_values(n, 2));
  const auto one_thread = backend_for(path_, 1);
  std::vector<float> alone(most * n);
  for (std::int64_t row = 0; row < most; ++row) {
    linear(*one_thread, matrix.packed, {x.data() + row * k, 1, k}, {alone.data() + row * n, 1, n});
  }
  for (const int threads : {1, 2, 3}) {
    const auto backend = backend_for(path_, threads);
    for (std::int64_t m = 1; m <= most; ++m) {
      std::vector<float> y(static_cast<std::size_t>(m * n));
      linear(*backend, matrix.packed, {x.data(), m, k}, {y.data(), m, n});
      ASSERT_TRUE(same_bits(y.data(), alone.data(), m * n)) << m << " rows, " << threads << " threads";
    }
  }
}

TEST(QuantisedPacker, RefusesImpossibleSizesSurplusAndMissingRows) {
  EXPECT_FALSE(QuantisedPacker::create(0, 64, MatrixFormat::kInt8).ok());
  EXPECT_FALSE(QuantisedPacker::create(4, 6, MatrixFormat::kNf4).ok());
  EXPECT_FALSE(QuantisedPacker::create(4, 64, MatrixFormat::kBf16).ok());
  EXPECT_FALSE(
      QuantisedPacker::create(std::int64_t{1} << 40, std::int64_t{1} << 40, MatrixFormat::kInt8).ok());
  auto packer = QuantisedPacker::create(2, 4, MatrixFormat::kInt8);
  const std::uint8_t codes[12] = {};
  const float scales[3] = {};
  EXPECT_EQ(packer->append(codes, scales, 3).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(packer->append(codes, scales, 1).ok());
  EXPECT_FALSE(packer->finish().ok());
}

}  // namespace
}  // namespace mesh::ops
