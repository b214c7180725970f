#include "node/runtime/base64.h"

#include <gtest/gtest.h>

namespace mesh {
namespace {

TEST(Base64, ReadsTheVectorsOfRfc4648) {
  EXPECT_EQ(from_base64(""), "");
  EXPECT_EQ(from_base64("Zg=="), "f");
  EXPECT_EQ(from_base64("Zm8="), "fo");
  EXPECT_EQ(from_base64("Zm9v"), "foo");
  EXPECT_EQ(from_base64("Zm9vYmFy"), "foobar");
  EXPECT_EQ(from_base64("/+8="), "\xff\xef");
}

TEST(Base64, RefusesWhatIsNot) {
  EXPECT_EQ(from_base64("Zg"), std::nullopt);
  EXPECT_EQ(from_base64("Zg=a"), std::nullopt);
  EXPECT_EQ(from_base64("===="), std::nullopt);
  EXPECT_EQ(from_base64("Zm 9"), std::nullopt);
}

}  // namespace
}  // namespace mesh
