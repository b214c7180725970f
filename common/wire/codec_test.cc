#include "common/wire/codec.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <cmath>
#include <cstring>

#include "common/wire/codec_chooser.h"

namespace mesh::wire {
namespace {

using std::chrono::milliseconds;

/// bf16 of a smooth function: exponents repeat as those of real hidden states do.
std::string hidden_states(std::size_t count) {
  std::string raw;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = std::sin(static_cast<float>(i * i % 977)) * 2.0f;
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    raw += static_cast<char>(bits >> 16);
    raw += static_cast<char>(bits >> 24);
  }
  return raw;
}

std::string compress(std::string_view raw) {
  std::string out(ZSTD_compressBound(raw.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), raw.data(), raw.size(), 1));
  return out;
}

TEST(HiddenCodec, EveryCodecGivesBackEveryBitPattern) {
  std::string raw;
  for (int high = 0; high < 256; ++high) {
    for (int low = 0; low < 256; ++low) {
      raw += static_cast<char>(low);
      raw += static_cast<char>(high);
    }
  }
  HiddenCodec coder;
  for (const Codec codec : {Codec::kIdentity, Codec::kZstd, Codec::kSplit}) {
    std::string coded;
    coder.encode(codec, raw, coded);
    const auto back = coder.decode(codec, coded, raw.size());
    ASSERT_TRUE(back.ok()) << name_of(codec) << back.status();
    EXPECT_EQ(*back, raw) << name_of(codec);
  }
}

TEST(HiddenCodec, SplitIsSmallerThanPlainZstdOnHiddenStates) {
  const std::string raw = hidden_states(128 * 576);
  HiddenCodec coder;
  std::string plain, split;
  coder.encode(Codec::kZstd, raw, plain);
  coder.encode(Codec::kSplit, raw, split);
  EXPECT_LT(plain.size(), raw.size());
  EXPECT_LT(split.size(), raw.size() * 8 / 10);
}

TEST(HiddenCodec, RefusesABombBeforeItMakesRoomForIt) {
  const std::string bomb = compress(std::string(std::size_t{1} << 28, '\0'));
  HiddenCodec coder;
  const auto result = coder.decode(Codec::kZstd, bomb, 2048);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(message_of(result.status()).find("the header implies 2048"), std::string_view::npos)
      << result.status();
}

TEST(HiddenCodec, RefusesWhatIsNotExactlyOneFrameOfTheExpectedSize) {
  const std::string raw = hidden_states(1024);
  const std::string coded = compress(raw);
  HiddenCodec coder;
  EXPECT_TRUE(coder.decode(Codec::kZstd, coded, raw.size()).ok());
  EXPECT_FALSE(coder.decode(Codec::kZstd, coded, raw.size() - 2).ok());
  EXPECT_FALSE(coder.decode(Codec::kZstd, coded + coded, raw.size()).ok());
  EXPECT_FALSE(coder.decode(Codec::kZstd, coded + "x", raw.size()).ok());
  EXPECT_FALSE(coder.decode(Codec::kZstd, coded.substr(0, coded.size() / 2), raw.size()).ok());
  EXPECT_FALSE(coder.decode(Codec::kZstd, "", raw.size()).ok());
  const std::string skippable("\x50\x2a\x4d\x18\x00\x00\x00\x00", 8);
  EXPECT_FALSE(coder.decode(Codec::kZstd, skippable + coded, raw.size()).ok());
  EXPECT_FALSE(coder.decode(Codec::kSplit, std::string(10, 'x'), raw.size()).ok());
  EXPECT_FALSE(coder.decode(Codec::kIdentity, raw + "x", raw.size()).ok());
}

TEST(HiddenCodec, RefusesAFrameThatWantsADictionary) {
  const std::string raw = hidden_states(1024);
  const std::string dictionary_content = hidden_states(4096);
  // RFC 8878, 3.1.1.1: descriptor 0x61 = single segment, two-byte content size, one-byte dictionary id.
  std::string frame("\x28\xb5\x2f\xfd\x61", 5);
  frame += '\x07';  // dictionary id
  frame += static_cast<char>((raw.size() - 256) & 0xff);
  frame += static_cast<char>((raw.size() - 256) >> 8);
  const std::uint32_t block = 1u | static_cast<std::uint32_t>(raw.size()) << 3;  // last, raw
  for (int i = 0; i < 3; ++i) frame += static_cast<char>(block >> (8 * i));
  frame += raw;
  HiddenCodec coder;
  const auto result = coder.decode(Codec::kZstd, frame, raw.size());
  ASSERT_FALSE(result.ok());
  EXPECT_NE(message_of(result.status()).find("dictionary"), std::string_view::npos) << result.status();
}

TEST(CodecPolicy, NamesAreTheFlags) {
  EXPECT_EQ(*parse_codec_policy("auto"), CodecPolicy::kAuto);
  EXPECT_EQ(*parse_codec_policy("zstd"), CodecPolicy::kZstd);
  EXPECT_EQ(*parse_codec_policy("identity"), CodecPolicy::kIdentity);
  EXPECT_FALSE(parse_codec_policy("gzip").ok());
}

TEST(CodecChooser, BreakEvenIsTheFormulasAndAutoFollowsIt) {
  CodecChooser chooser(CodecPolicy::kAuto);
  EXPECT_EQ(chooser.choose(1 << 20), Codec::kIdentity) << "nothing measured";
  // ρ → 0.5 and Vc → 1 GB/s, Vd = 2 Vc: (1 − 0.5) / (1/1e9 + 1/2e9) = 333.3 MB/s.
  for (int i = 0; i < 200; ++i) chooser.encoded(1'000'000, 500'000, milliseconds(1));
  EXPECT_NEAR(chooser.break_even(), 333.3e6, 1e6);
  for (int i = 0; i < 200; ++i) chooser.sent(1'000'000, milliseconds(10));  // 100 MB/s
  EXPECT_EQ(chooser.choose(1 << 20), Codec::kSplit);
  EXPECT_EQ(chooser.choose(1000), Codec::kIdentity) << "a decode row";
  for (int i = 0; i < 200; ++i) chooser.sent(1'000'000, milliseconds(1));  // 1 GB/s
  EXPECT_EQ(chooser.choose(1 << 20), Codec::kIdentity);
}

TEST(CodecChooser, AFixedPolicyIsObeyed) {
  EXPECT_EQ(CodecChooser(CodecPolicy::kZstd).choose(2), Codec::kZstd);
  EXPECT_EQ(CodecChooser(CodecPolicy::kSplit).choose(2), Codec::kSplit);
  EXPECT_EQ(CodecChooser(CodecPolicy::kIdentity).choose(1 << 30), Codec::kIdentity);
}

}  // namespace
}  // namespace mesh::wire
