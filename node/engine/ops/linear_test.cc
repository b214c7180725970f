#include "node/engine/ops/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "node/engine/ops/ops_test_util.h"

namespace mesh::ops {
namespace {

class Linear : public testing::TestWithParam<CpuPath> {};
INSTANTIATE_TEST_SUITE_P(Paths, Linear, testing::ValuesIn(float32_paths()), path_name);

PackedLinear pack(const std::vector<float>& weight, std::int64_t out, std::int64_t in, Element element,
                  const std::vector<float>& bias = {}) {
  auto packer = LinearPacker::create(out, in, element);
  EXPECT_TRUE(packer.ok());
  EXPECT_TRUE(packer->append_rows(weight.data(), Element::kF32, out, in).ok());
  if (!bias.empty()) {
    EXPECT_TRUE(packer->set_bias(0, bias).ok());
  }
  auto packed = packer->finish();
  EXPECT_TRUE(packed.ok());
  return *std::move(packed);
}

// |error| of a chain of k float32 products: √k · 2^−24 · Σ|x·w| bounds it with a wide margin for random
// signs.
void expect_product(const std::vector<float>& weight, const std::vector<float>& bias, ConstMatrix x,
                    ConstMatrix y) {
  for (std::int64_t m = 0; m < y.rows; ++m) {
    for (std::int64_t n = 0; n < y.cols; ++n) {
      double exact = bias.empty() ? 0.0 : bias[static_cast<std::size_t>(n)];
      double size = std::abs(exact);
      for (std::int64_t k = 0; k < x.cols; ++k) {
        const double term =
            static_cast<double>(x.row(m)[k]) * weight[static_cast<std::size_t>(n * x.cols + k)];
        exact += term;
        size += std::abs(term);
      }
      const double tolerance = std::sqrt(static_cast<double>(x.cols) + 1) * 6e-8 * size;
      ASSERT_NEAR(y.row(m)[n], exact, tolerance) << "row " << m << " column " << n;
    }
  }
}

TEST_P(Linear, MatchesDoubleProductOnAwkwardShapes) {
  const auto backend = backend_for(GetParam());
  for (const Element element : {Element::kF32, Element::kBf16}) {
    for (const std::int64_t m : {1, 2, 3, 5, 6, 7, 13, 14, 27, 193}) {
      for (const auto& [n, k] :
           {std::pair<std::int64_t, std::int64_t>{1, 1}, {31, 7}, {33, 255}, {96, 257}, {70, 515}}) {
        SCOPED_TRACE(testing::Message() << m << "×" << n << "×" << k);
        auto weight = random_values(n * k, 1);
        if (element == Element::kBf16) weight = rounded_to_bf16(weight);
        const auto bias = m % 2 == 0 ? random_values(n, 2) : std::vector<float>();
        const PackedLinear packed = pack(weight, n, k, element, bias);
        const auto x = random_values(m * k, 3);
        std::vector<float> y(static_cast<std::size_t>(m * n), NAN);
        linear(*backend, packed, as_const(x, m), as_matrix(y, m));
        expect_product(weight, bias, as_const(x, m), as_const(y, m));
      }
    }
  }
}

TEST_P(Linear, ReadsAndWritesStridedRowsAndNothingBeside) {
  const auto backend = backend_for(GetParam());
  const std::int64_t m = 9, n = 40, k = 50;
  const auto weight = random_values(n * k, 1);
  const PackedLinear packed = pack(weight, n, k, Element::kF32);
  const auto x = random_values(m * 64, 2);
  std::vector<float> y(m * 48, 7.0f);
  const ConstMatrix in(x.data(), m, k, 64);
  const Matrix out(y.data(), m, n, 48);
  linear(*backend, packed, in, out);
  expect_product(weight, {}, in, out);
  for (std::int64_t row = 0; row < m; ++row) {
    for (std::int64_t i = n; i < 48; ++i) EXPECT_EQ(out.row(row)[i], 7.0f);
  }
}

TEST_P(Linear, AddsToWhatIsThere) {
  const auto backend = backend_for(GetParam());
  const std::int64_t m = 5, n = 33, k = 300;
  const auto weight = random_values(n * k, 1);
  const PackedLinear packed = pack(weight, n, k, Element::kF32, random_values(n, 5));
  const auto x = random_values(m * k, 2);
  std::vector<float> plain(m * n), added(m * n, 100.0f);
  linear(*backend, packed, as_const(x, m), as_matrix(plain, m));
  linear(*backend, packed, as_const(x, m), as_matrix(added, m), Store::kAdd);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(added[i], plain[i] + 100.0f, 3e-5);
}

TEST_P(Linear, RowsDoNotDependOnTheirNeighboursOrOnThreads) {
  const std::int64_t most = 130, n = 96, k = 600;
  const auto x = random_values(most * k, 4);
  for (const Element element : {Element::kF32, Element::kBf16}) {
    const PackedLinear packed = pack(random_values(n * k, 1), n, k, element, random_values(n, 2));
    const auto one_thread = backend_for(GetParam(), 1);
    std::vector<float> alone(most * n);
    for (std::int64_t row = 0; row < most; ++row) {
      linear(*one_thread, packed, {x.data() + row * k, 1, k}, {alone.data() + row * n, 1, n});
    }
    for (const int threads : {1, 2, 3}) {
      const auto backend = backend_for(GetParam(), threads);
      for (std::int64_t m = 1; m <= most; ++m) {
        std::vector<float> y(static_cast<std::size_t>(m * n));
        linear(*backend, packed, {x.data(), m, k}, {y.data(), m, n});
        ASSERT_TRUE(same_bits(y.data(), alone.data(), m * n)) << m << " rows, " << threads << " threads";
      }
    }
  }
}

TEST(LinearPacker, TakesPiecesTransposedSourcesAndUnalignedBytes) {
  const std::int64_t in = 5;
  const auto first = rounded_to_bf16(random_values(3 * in, 1));
  const auto second = random_values(in * 40, 2);  // [in, 40]
  std::vector<char> unaligned(1 + first.size() * 2);
  for (std::size_t i = 0; i < first.size(); ++i) {
    const Bf16 value = to_bf16(first[i]);
    std::memcpy(unaligned.data() + 1 + i * 2, &value, 2);
  }
  auto packer = LinearPacker::create(43, in, Element::kF32);
  ASSERT_TRUE(packer.ok());
  ASSERT_TRUE(packer->append_rows(unaligned.data() + 1, Element::kBf16, 3, in).ok());
  ASSERT_TRUE(packer->append_transposed(second.data(), Element::kF32, 40, 40).ok());
  const auto packed = packer->finish();
  ASSERT_TRUE(packed.ok());
  std::vector<float> row(in);
  for (std::int64_t n = 0; n < 43; ++n) {
    linear_row(*packed, n, row.data());
    for (std::int64_t k = 0; k < in; ++k) {
      const float expected = n < 3 ? first[static_cast<std::size_t>(n * in + k)]
                                   : second[static_cast<std::size_t>(k * 40 + n - 3)];
      EXPECT_EQ(row[static_cast<std::size_t>(k)], expected) << n << "," << k;
    }
  }
}

TEST(LinearPacker, SeveralThreadsPutRowsInAnyOrder) {
  constexpr std::int64_t kOut = 200, kIn = 300;
  const auto values = rounded_to_bf16(random_values(kOut * kIn, 4));
  auto packer = LinearPacker::create(kOut, kIn, Element::kBf16);
  ASSERT_TRUE(packer.ok());
  std::atomic<std::int64_t> left = kOut / 8;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (std::int64_t piece = --left; piece >= 0; piece = --left) {
        const float* rows = values.data() + piece * 8 * kIn;
        EXPECT_TRUE(packer->put_rows(piece * 8, rows, Element::kF32, 8, kIn).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto packed = packer->finish();
  ASSERT_TRUE(packed.ok());
  std::vector<float> row(kIn);
  for (std::int64_t n = 0; n < kOut; ++n) {
    linear_row(*packed, n, row.data());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), values.begin() + n * kIn)) << n;
  }
}

TEST(LinearPacker, RoundsFloatAndHalfSourcesToBf16) {
  const float values[2] = {1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f};  // ties: down to even, up to even
  const std::uint16_t half = 0x3C01;                             // 1 + 2^−10
  auto packer = LinearPacker::create(3, 1, Element::kBf16);
  ASSERT_TRUE(packer->append_rows(values, Element::kF32, 2, 1).ok());
  ASSERT_TRUE(packer->append_rows(&half, Element::kF16, 1, 1).ok());
  const auto packed = packer->finish();
  float row;
  linear_row(*packed, 0, &row);
  EXPECT_EQ(row, 1.0f);
  linear_row(*packed, 1, &row);
  EXPECT_EQ(row, 1.0f + 4 * 0x1p-8f);
  linear_row(*packed, 2, &row);
  EXPECT_EQ(row, 1.0f);
}

TEST(LinearPacker, RefusesImpossibleSizesSurplusAndMissingRows) {
  EXPECT_FALSE(LinearPacker::create(0, 4, Element::kF32).ok());
  EXPECT_FALSE(LinearPacker::create(std::int64_t{1} << 40, std::int64_t{1} << 40, Element::kF32).ok());
  auto packer = LinearPacker::create(2, 1, Element::kF32);
  const float values[3] = {1, 2, 3};
  EXPECT_EQ(packer->append_rows(values, Element::kF32, 3, 1).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(packer->append_rows(values, Element::kF32, 1, 1).ok());
  EXPECT_FALSE(packer->finish().ok());
  EXPECT_FALSE(packer->set_bias(1, values).ok());
}

}  // namespace
}  // namespace mesh::ops
