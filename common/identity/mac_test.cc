#include "common/identity/mac.h"

#include <gtest/gtest.h>

namespace mesh {
namespace {

SessionSecret counting_secret() {
  SessionSecret secret;
  for (std::size_t i = 0; i < SessionSecret::kSize; ++i) secret.bytes[i] = static_cast<std::uint8_t>(i);
  return secret;
}

// Values: Python's hashlib.blake2b(data, key=bytes(range(32)), digest_size=16).
constexpr char kOfFrame[] = "30bd8b7f4c388f1c260b33f55fc167ef";
constexpr char kOfNothing[] = "3daf97bce7888fd59773c66bf647459c";

TEST(Mac, IsKeyedBlake2bOfTheConcatenation) {
  const SessionSecret secret = counting_secret();
  EXPECT_EQ(compute_mac(secret, {"meshnet frame header", "payload"}).hex(), kOfFrame);
  EXPECT_EQ(compute_mac(secret, {"meshnet frame headerpayload"}).hex(), kOfFrame);
  EXPECT_EQ(compute_mac(secret, {}).hex(), kOfNothing);
  MacStream stream(secret);
  stream.update("meshnet ").update("").update("frame headerpayload");
  EXPECT_EQ(stream.finish().hex(), kOfFrame);
}

TEST(Mac, RefusesAChangedByteAndAnotherSecret) {
  const SessionSecret secret = counting_secret();
  const Mac mac = compute_mac(secret, {"header", "payload"});
  EXPECT_TRUE(verify_mac(secret, {"header", "payload"}, mac));
  EXPECT_FALSE(verify_mac(secret, {"header", "paylobd"}, mac));
  SessionSecret other = secret;
  other.bytes[31] ^= 1;
  EXPECT_FALSE(verify_mac(other, {"header", "payload"}, mac));
  Mac changed = mac;
  changed.bytes[15] ^= 0x80;
  EXPECT_FALSE(verify_mac(secret, {"header", "payload"}, changed));
}

}  // namespace
}  // namespace mesh
