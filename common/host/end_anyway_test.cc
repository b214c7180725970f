#include "common/host/end_anyway.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace mesh {
namespace {

TEST(EndAnywayDeathTest, AnEndThatHangsIsCutOffWithTheGivenCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        end_anyway_after(std::chrono::milliseconds(10), 7);
        while (true) ::pause();
      },
      testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace mesh
