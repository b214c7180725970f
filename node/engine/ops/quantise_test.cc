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

// OFP8: exponent bias 7, three bits of mantissa; exponent 0 is subnormal; only 0x7f and 0xff are no numbers.
float e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float size =
      exponent == 0 ? std::ldexp(mantissa / 8.0f, -6) : std::ldexp(1 + mantissa / 8.0f, exponent - 7);
  return code & 0x80 ? -size : size;
}

TEST(QuantiseFp8, CodesMeanWhatTheFormatSays) {
  for (int code = 0; code < 256; ++code) {
    const float value = fp8_value(static_cast<std::uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    EXPECT_EQ(value, e4m3(code)) << code;
    EXPECT_EQ(to_fp8(value), code);
  }
  EXPECT_EQ(fp8_value(0x7E), kFp8Largest);
}

TEST(QuantiseFp8, RoundsToTheNearestCodeTiesToEvenAndStopsAtTheLargest) {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = e4m3(code), high = e4m3(code + 1), middle = (low + high) / 2;
    EXPECT_EQ(to_fp8(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(to_fp8(std::nextafter(middle, low)), code) << code;
    EXPECT_EQ(to_fp8(std::nextafter(middle, high)), code + 1) << code;
    EXPECT_EQ(to_fp8(-std::nextafter(middle, high)), (code + 1) | 0x80) << code;
  }
  EXPECT_EQ(to_fp8(1e30f), 0x7E);
  EXPECT_EQ(to_fp8(-std::numeric_limits<float>::infinity()), 0xFE);
  EXPECT_EQ(to_fp8(1e-30f), 0);
}

TEST(QuantiseFp8, TheLargestOfARowBecomes448AndItsScaleStandsForEveryPiece) {
  std::vector<float> row(384, 0.25f);
  row[300] = -7;
  row[1] = 2.0f / 64;  // 2 after scaling
  std::uint8_t codes[384];
  float scales[3];
  ASSERT_TRUE(quantise_row(MatrixFormat::kFp8, row.data(), 384, codes, scales));
  EXPECT_THAT(scales, testing::Each(7.0f / 448));
  EXPECT_EQ(codes[300], 0xFE);
  EXPECT_EQ(codes[0], 0x58);  // 16
  EXPECT_EQ(codes[1], 0x40);
  std::vector<float> meant(384);
  dequantise_row(MatrixFormat::kFp8, codes, scales, 384, meant.data());
  EXPECT_EQ(meant, row);
}

TEST(QuantiseFp8, EachPieceOfARowHasItsOwnScale) {
  std::vector<float> row(192);
  const float scales[] = {3, 5, 7};  // gcd(192, 128) = 64
  const std::vector<std::uint8_t> ones(192, 0x38);
  dequantise_row(MatrixFormat::kFp8, ones.data(), scales, 192, row.data());
  EXPECT_EQ(row[0], 3);
  EXPECT_EQ(row[63], 3);
  EXPECT_EQ(row[64], 5);
  EXPECT_EQ(row[191], 7);
}

TEST(Quantise, ZerosStayZero) {
  const std::vector<float> zeros(128);
  for (const MatrixFormat format : {MatrixFormat::kInt8, MatrixFormat::kNf4, MatrixFormat::kFp8}) {
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
    EXPECT_FALSE(quantise_row(MatrixFormat::kFp8, row.data(), 64, codes, &scale));
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
  EXPECT_EQ(scale_group(MatrixFormat::kFp8, 96), 32);
}

}  // namespace
}  // namespace mesh::ops
