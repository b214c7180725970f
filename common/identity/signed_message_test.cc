#include "common/identity/signed_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/identity/join_key.h"

namespace mesh {
namespace {

constexpr char kRoute[] = "/mesh/v1/join";

TEST(SignedMessage, NamesTheKeyThatSigned) {
  const KeyPair node = KeyPair::generate();
  const MessageSignature signature = sign_message(node, kRoute, "{}");
  const auto key = verify_message(kRoute, "{}", signature.key_hex, signature.signature_hex);
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_EQ(*key, node.public_key());
}

TEST(SignedMessage, SignsThePrefixRouteAndBody) {
  const KeyPair node = KeyPair::generate();
  const MessageSignature signature = sign_message(node, kRoute, "{}");
  EXPECT_TRUE(
      verify(node.public_key(), "meshnet/1 /mesh/v1/join\n{}", *Signature::parse(signature.signature_hex)));
}

TEST(SignedMessage, RefusesAnotherRouteBodyOrKeyAndWhatIsMalformed) {
  const KeyPair node = KeyPair::generate();
  const MessageSignature good = sign_message(node, kRoute, "{}");
  const std::string other_key = KeyPair::generate().public_key().hex();
  const auto code = [](const StatusOr<PublicKey>& result) { return result.status().code(); };
  EXPECT_EQ(code(verify_message("/mesh/v1/heartbeat", "{}", good.key_hex, good.signature_hex)),
            StatusCode::kUnauthenticated);
  EXPECT_EQ(code(verify_message(kRoute, "{ }", good.key_hex, good.signature_hex)),
            StatusCode::kUnauthenticated);
  EXPECT_EQ(code(verify_message(kRoute, "{}", other_key, good.signature_hex)), StatusCode::kUnauthenticated);
  EXPECT_EQ(code(verify_message(kRoute, "{}", "", good.signature_hex)), StatusCode::kUnauthenticated);
  EXPECT_EQ(code(verify_message(kRoute, "{}", good.key_hex, "00")), StatusCode::kUnauthenticated);
}

TEST(JoinKey, TextRoundTripsAndPinsTheTracker) {
  const KeyPair tracker = KeyPair::generate();
  const JoinKey key = JoinKey::make(tracker.public_key());
  EXPECT_THAT(key.text(), ::testing::MatchesRegex("mesh1\\.[0-9a-f]+\\.[0-9a-f]+"));
  EXPECT_EQ(key.text().size(), 6u + 64 + 1 + 64);
  const auto read = JoinKey::parse(key.text());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->text(), key.text());
  EXPECT_TRUE(read->pins(tracker.public_key()));
  EXPECT_FALSE(read->pins(KeyPair::generate().public_key()));
  EXPECT_NE(JoinKey::make(tracker.public_key()).text(), key.text());
}

TEST(JoinKey, ProofHoldsForItsBodyAlone) {
  const JoinKey key = JoinKey::make(KeyPair::generate().public_key());
  const Mac proof = JoinKey::parse(key.text())->prove("body");
  EXPECT_TRUE(key.verify_proof("body", proof));
  EXPECT_FALSE(key.verify_proof("bodies", proof));
  EXPECT_FALSE(JoinKey::make(KeyPair::generate().public_key()).verify_proof("body", proof));
}

TEST(JoinKey, RefusesMalformedTextWithoutRepeatingIt) {
  const std::string good = JoinKey::make(KeyPair::generate().public_key()).text();
  std::string no_dot = good;
  no_dot[6 + 64] = '0';
  std::string not_hex = good;
  not_hex[10] = 'g';
  for (const std::string& text :
       {std::string(), good.substr(1), good + "0", "mesh2" + good.substr(5), no_dot, not_hex}) {
    const auto key = JoinKey::parse(text);
    EXPECT_EQ(key.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(std::string(message_of(key.status())).find(good.substr(20, 30)), std::string::npos);
  }
}

}  // namespace
}  // namespace mesh
