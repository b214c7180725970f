#include "common/config/units.h"

#include <gtest/gtest.h>

namespace mesh::config {
namespace {

using namespace std::chrono_literals;

TEST(Size, ReadsBothKindsOfUnits) {
  EXPECT_EQ(*parse_size("8GiB"), 8589934592u);
  EXPECT_EQ(*parse_size("512 MB"), 512000000u);
  EXPECT_EQ(*parse_size("1.5KiB"), 1536u);
  EXPECT_EQ(*parse_size("4096"), 4096u);
  EXPECT_EQ(*parse_size("0"), 0u);
  for (const char* text : {"", "GiB", "8G", "8gib", "-1", "+1", "1e3", "8GiB ", "1..5", "inf", "0x10",
                           "99999999TiB", "1,5GiB"}) {
    EXPECT_FALSE(parse_size(text).ok()) << text;
  }
}

TEST(Size, FormatReadsBack) {
  EXPECT_EQ(format_size(8589934592u), "8GiB");
  for (const std::uint64_t bytes : {0ull, 1ull, 1000ull, 1536ull, 1ull << 40, 3ull << 41}) {
    EXPECT_EQ(*parse_size(format_size(bytes)), bytes);
  }
}

TEST(DurationText, NeedsAUnit) {
  EXPECT_EQ(*parse_duration("250ms"), 250ms);
  EXPECT_EQ(*parse_duration("2s"), 2s);
  EXPECT_EQ(*parse_duration("1.5m"), 90s);
  EXPECT_EQ(*parse_duration("2h"), 2h);
  EXPECT_EQ(*parse_duration("0"), 0s);
  for (const char* text : {"", "2", "s", "-2s", "2 sec", "2us", "1e9h", "9999999999s"}) {
    EXPECT_FALSE(parse_duration(text).ok()) << text;
  }
  for (const Duration duration : {Duration(0s), Duration(2s), Duration(250ms), Duration(1500ms)}) {
    EXPECT_EQ(*parse_duration(format_duration(duration)), duration);
  }
}

}  // namespace
}  // namespace mesh::config
