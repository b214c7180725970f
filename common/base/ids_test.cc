#include "common/base/ids.h"

#include <gtest/gtest.h>

#include "common/base/checked.h"

namespace mesh {
namespace {

TEST(Hex, RoundTripsEveryByteAndRefusesWhatIsNotHex) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(from_hex(to_hex(all)), all);
  EXPECT_EQ(to_hex("\xff\x1a"), "ff1a");
  EXPECT_EQ(from_hex("0"), std::nullopt);
  EXPECT_EQ(from_hex("0g"), std::nullopt);
}

TEST(OpaqueId, ParsesOnlyItsOwnLength) {
  EXPECT_TRUE(SessionId::parse("000102030405060708090a0b0c0d0e0f").has_value());
  EXPECT_FALSE(SessionId::parse("00010203").has_value());
  EXPECT_EQ(SessionId::parse("000102030405060708090a0b0c0d0e0f")->hex(), "000102030405060708090a0b0c0d0e0f");
}

TEST(LayerRange, ContainsIsHalfOpen) {
  const LayerRange range{3, 6};
  EXPECT_TRUE(range.contains(3u));
  EXPECT_FALSE(range.contains(6u));
  EXPECT_TRUE(range.contains(LayerRange{4, 6}));
  EXPECT_FALSE(range.contains(LayerRange{2, 4}));
}

TEST(Checked, ReportsOverflow) {
  EXPECT_EQ(checked_mul<std::uint64_t>(1ull << 32, 1ull << 31), 1ull << 63);
  EXPECT_EQ(checked_mul<std::uint64_t>(1ull << 32, 1ull << 32), std::nullopt);
  EXPECT_EQ(checked_add<std::uint64_t>(~0ull, 1), std::nullopt);
}

}  // namespace
}  // namespace mesh
