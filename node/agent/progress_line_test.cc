#include "node/agent/progress_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "node/agent/about_size.h"

namespace mesh {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

constexpr std::uint64_t kMiB = 1 << 20;

TEST(ProgressLine, SaysBytesRateAndTimeLeftOnceAnInterval) {
  const TimePoint begin{};
  ProgressLine line("layers [0, 3)", seconds(10), begin);
  EXPECT_EQ(line.note("fetching", 0, 100 * kMiB, begin), std::nullopt);
  EXPECT_EQ(line.note("fetching", 10 * kMiB, 100 * kMiB, begin + seconds(9)), std::nullopt);
  const auto text = line.note("fetching", 20 * kMiB, 100 * kMiB, begin + seconds(10));
  ASSERT_TRUE(text.has_value());
  EXPECT_THAT(*text, HasSubstr("fetching layers [0, 3): 20 %"));
  EXPECT_THAT(*text, HasSubstr("40 s left"));  // 2 MiB/s, 80 MiB to go
  EXPECT_EQ(line.note("fetching", 21 * kMiB, 100 * kMiB, begin + seconds(11)), std::nullopt);
}

TEST(AboutSize, IsShort) {
  EXPECT_EQ(about_size(0), "0 B");
  EXPECT_EQ(about_size(1023), "1023 B");
  EXPECT_EQ(about_size(1536), "1.5 KiB");
  EXPECT_EQ(about_size(std::uint64_t{21380198400}), "19.9 GiB");
}

TEST(ProgressLine, AnotherPhaseIsMeasuredAnew) {
  const TimePoint begin{};
  ProgressLine line("layers", seconds(10), begin);
  line.note("fetching", 100 * kMiB, 100 * kMiB, begin + seconds(5));
  line.note("loading", 0, 100 * kMiB, begin + seconds(6));
  const auto text = line.note("loading", 40 * kMiB, 100 * kMiB, begin + seconds(16));
  ASSERT_TRUE(text.has_value());
  EXPECT_THAT(*text, HasSubstr("15 s left"));  // 4 MiB/s, 60 MiB to go
}

}  // namespace
}  // namespace mesh
