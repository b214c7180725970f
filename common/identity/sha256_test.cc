#include "common/identity/sha256.h"

#include <gtest/gtest.h>

#include "common/identity/random.h"

namespace mesh {
namespace {

// Values: FIPS 180-4 examples.
TEST(Sha256, MatchesTheStandardsExamples) {
  EXPECT_EQ(sha256("").hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc").hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, PiecesGiveTheHashOfTheWholeAndTheStreamCanBeUsedAgain) {
  Sha256Stream stream;
  const std::string piece(1000, 'a');
  for (int i = 0; i < 999; ++i) stream.update(piece);
  Sha256Stream copy = stream;
  EXPECT_EQ(stream.update(piece).finish().hex(),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(stream.update("abc").finish(), sha256("abc"));
  EXPECT_EQ(copy.update(piece).finish().hex(),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Random, IdsDiffer) {
  EXPECT_NE(random_id<SessionId>(), random_id<SessionId>());
}

}  // namespace
}  // namespace mesh
