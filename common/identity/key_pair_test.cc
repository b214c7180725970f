#include "common/identity/key_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "common/identity/random.h"

namespace mesh {
namespace {

using ::testing::HasSubstr;

// RFC 8032, 7.1, TEST 2.
constexpr char kSeed[] = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb";
constexpr char kPublic[] = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";
constexpr char kSignatureOf72[] =
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00";

KeyPair example() {
  const std::string raw = *from_hex(kSeed);
  std::array<std::uint8_t, 32> seed;
  std::copy(raw.begin(), raw.end(), seed.begin());
  return KeyPair::from_seed(seed);
}

class KeyFileTest : public ::testing::Test {
 protected:
  KeyFileTest()
      : folder_(std::filesystem::temp_directory_path() / ("meshnet-key-" + to_hex(random_bytes(8)))) {}
  ~KeyFileTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST(KeyPair, SignsAsTheStandardSays) {
  const KeyPair pair = example();
  EXPECT_EQ(pair.public_key().hex(), kPublic);
  EXPECT_EQ(pair.sign("\x72").hex(), kSignatureOf72);
  // hashlib.sha256 of the public key.
  EXPECT_EQ(pair.id().hex(), "39f713d0a644253f04529421b9f51b9b08979d08295959c4f3990ee617f5139f");
}

TEST(KeyPair, VerifiesOnlyItsOwnMessage) {
  const KeyPair pair = KeyPair::generate();
  const Signature signature = pair.sign("drop shard");
  EXPECT_TRUE(verify(pair.public_key(), "drop shard", signature));
  EXPECT_FALSE(verify(pair.public_key(), "drop shards", signature));
  EXPECT_FALSE(verify(KeyPair::generate().public_key(), "drop shard", signature));
}

TEST(SealedBox, OpensOnlyForItsRecipient) {
  const KeyPair node = KeyPair::generate();
  const auto sealed = seal(node.public_key(), "secret");
  ASSERT_TRUE(sealed.ok());
  EXPECT_EQ(sealed->size(), 6u + 48u);
  EXPECT_EQ(*node.open_sealed(*sealed), "secret");
  EXPECT_EQ(KeyPair::generate().open_sealed(*sealed).status().code(), StatusCode::kUnauthenticated);
  std::string changed = *sealed;
  changed.back() ^= 1;
  EXPECT_EQ(node.open_sealed(changed).status().code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(node.open_sealed("short").status().code(), StatusCode::kInvalidArgument);
}

TEST(SealedBox, RefusesAKeyThatIsNoPointOfTheCurve) {
  PublicKey zero;
  EXPECT_EQ(seal(zero, "secret").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(KeyFileTest, IsMadeOnceForItsOwnerAlone) {
  const auto file = folder_ / "state" / "key";
  EXPECT_EQ(KeyPair::load(file).status().code(), StatusCode::kNotFound);
  const auto first = KeyPair::load_or_create(file);
  ASSERT_TRUE(first.ok()) << first.status();
  struct stat info{};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto again = KeyPair::load_or_create(file);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->public_key(), first->public_key());
  EXPECT_TRUE(verify(first->public_key(), "x", again->sign("x")));
  EXPECT_EQ(KeyPair::generate().save(file).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(file.parent_path()), {}), 1)
      << "a draft was left behind";
}

TEST_F(KeyFileTest, RefusesAFileThatOthersReadOrThatHoldsSomethingElse) {
  const auto file = folder_ / "key";
  ASSERT_TRUE(KeyPair::load_or_create(file).ok());
  ::chmod(file.c_str(), 0640);
  const auto open_to_others = KeyPair::load(file);
  EXPECT_EQ(open_to_others.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(message_of(open_to_others.status())), HasSubstr("chmod 600"));
  ::chmod(file.c_str(), 0600);
  for (const std::string& text : {std::string(), std::string("meshnet-ed25519 \n"), std::string(4096, 'a'),
                                  "meshnet-ed25519 " + std::string(64, 'z') + "\n"}) {
    std::ofstream(file, std::ios::trunc) << text;
    EXPECT_EQ(KeyPair::load(file).status().code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_FALSE(KeyPair::load_or_create(file).ok())
      << "a broken key file must not be replaced by a new identity";
}

}  // namespace
}  // namespace mesh
