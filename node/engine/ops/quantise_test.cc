#include "node/engine/ops/quantise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "node/engine/ops/ops_test_util.h"

namespace mesh::ops {
namespace {

TEST(QuantiseInt8, RoundsToHalfPrecisionThenHalfToEvenOfWeightTimes127OverLargest) {
  // Largest 127: the factor is 1. 2.5 and 3.5 are ties; 0.50024 becomes 0.5 in half precision, a tie, too.
  const float row[] = {127, 2.5f, 3.5f, -2.5f, 0.50024f, 0.501f, -127, 0};
  std::uint8_t codes[8];
  float scale;
  ASSERT_TRUE(quantise_row(MatrixFormat::kInt8, row, 8, codes, &scale));
  EXPECT_EQ(scale, 127);
  const std::int8_t expected[] = {127, 2, 4, -2, 0, 1, -127, 0};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(static_cast<std::int8_t>(codes[i]), expected[i]) << i;
}

TEST(QuantiseInt8, KeepsSubnormalHalves) {
  const float row[] = {3 * 0x1p-24f, 1.5f * 0x1p-24f, 0.5f * 0x1p-24f, 0x1p-26f};  // halves: 3, 2, 0, 0
  std::uint8_t codes[4];
  float scale;
  ASSERT_TRUE(quantise_row(MatrixFormat::kInt8, row, 4, codes, &scale));
  EXPECT_EQ(scale, 3 * 0x1p-24f);
  EXPECT_THAT(codes, testing::ElementsAre(127, 85, 0, 0));
}

TEST(QuantiseNf4, TakesTheNearestValueAndTheLowerOneAtAMidpoint) {
  std::vector<float> block(64);
  for (int i = 0; i < 16; ++i) block[static_cast<std::size_t>(i)] = kNf4Values[i];
  const float midpoint = (kNf4Values[8] + kNf4Values[9]) / 2;
  block[16] = midpoint;
  block[17] = std::nextafter(midpoint, 1.0f);
  std::uint8_t codes[32];
  float scale;
  ASSERT_TRUE(quantise_row(MatrixFormat::kNf4, block.data(), 64, codes, &scale));
  EXPECT_EQ(scale, 1);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(codes[i], 2 * i << 4 | (2 * i + 1)) << i;
  EXPECT_EQ(codes[8], 0x89);
  EXPECT_EQ(codes[9], 0x77);  // zeros
}

TEST(Quantise, ZerosStayZero) {
  const std::vector<float> zeros(128);
  for (const MatrixFormat format : {MatrixFormat::kInt8, MatrixFormat::kNf4}) {
    std::vector<std::uint8_t> codes(128);
    std::vector<float> scales(2), row(128, NAN);
    ASSERT_TRUE(quantise_row(format, zeros.data(), 128, codes.data(), scales.data()));
    dequantise_row(format, codes.data(), scales.data(), 128, row.data());
    EXPECT_EQ(row, zeros);
  }
}

TEST(Quantise, RefusesWhatIsNotFinite) {
  std::uint8_t codes[64];
  float scale;
  for (const float value : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> row(64, 1);
    row[40] = value;
    EXPECT_FALSE(quantise_row(MatrixFormat::kInt8, row.data(), 64, codes, &scale));
    EXPECT_FALSE(quantise_row(MatrixFormat::kNf4, row.data(), 64, codes, &scale));
  }
  const std::vector<float> wide(64, 65520.0f);  // infinite in half precision
  EXPECT_FALSE(quantise_row(MatrixFormat::kInt8, wide.data(), 64, codes, &scale));
  EXPECT_TRUE(quantise_row(MatrixFormat::kNf4, wide.data(), 64, codes, &scale));
}

TEST(Quantise, RowsOfBrokenBlocksAreKeptAsInt8) {
  EXPECT_EQ(quantised_format(MatrixFormat::kNf4, 128), MatrixFormat::kNf4);
  EXPECT_EQ(quantised_format(MatrixFormat::kNf4, 96), MatrixFormat::kInt8);
  EXPECT_EQ(scale_group(MatrixFormat::kNf4, 96), 32);
  EXPECT_EQ(scale_group(MatrixFormat::kInt8, 96), 96);
}

}  // namespace
}  // namespace mesh::ops
