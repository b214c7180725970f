#include "common/wire/token_codec.h"

#include <gtest/gtest.h>

#include "common/wire/vectors_for_test.h"

namespace mesh::wire {
namespace {

TEST(Tokens, WriteAndReadTheGoldenBytes) {
  const std::string golden = read_vector("tokens.bin");
  const std::vector<SignedToken> tokens{{{kVectorSession, {2}, 8, 42, -0.25f}, kVectorSecret},
                                        {{kVectorSession, {2}, 9, 49151, 0.0f}, kVectorSecret}};
  EXPECT_EQ(encode_tokens(tokens), golden);
  const auto parsed = parse_tokens(golden);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*parsed)[i].message, tokens[i].message);
    EXPECT_TRUE(mac_fits((*parsed)[i], kVectorSecret));
    EXPECT_FALSE(mac_fits((*parsed)[i], counting_id<SessionSecret>(1)));
  }
}

TEST(Tokens, ALogprobThatRoundingLeftAboveZeroIsSentAsZero) {
  const std::string body =
      encode_tokens(std::vector<SignedToken>{{{kVectorSession, {2}, 8, 42, 1e-7f}, kVectorSecret}});
  const auto parsed = parse_tokens(body);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->front().message.logprob, 0.0f);
}

TEST(Tokens, EveryChangedByteOfATokenBreaksItsMac) {
  const std::string golden = read_vector("tokens.bin");
  for (std::size_t i = 8; i < golden.size(); ++i) {
    std::string changed = golden;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    const auto parsed = parse_tokens(changed);
    if (!parsed.ok()) continue;
    EXPECT_FALSE(mac_fits((*parsed)[0], kVectorSecret) && mac_fits((*parsed)[1], kVectorSecret)) << i;
  }
}

TEST(Tokens, WrongLengthsCountsAndValuesAreRefused) {
  const std::string golden = read_vector("tokens.bin");
  for (std::size_t size = 0; size < golden.size(); ++size)
    EXPECT_FALSE(parse_tokens(golden.substr(0, size)).ok());
  EXPECT_FALSE(parse_tokens(golden + "x").ok());
  std::string negative = golden;
  negative[8 + 31] = '\xff';  // the id's sign
  EXPECT_FALSE(parse_tokens(negative).ok());
  std::string nan = golden;
  nan.replace(8 + 32, 4, "\xff\xff\xff\x7f");
  EXPECT_FALSE(parse_tokens(nan).ok());
  std::string none = golden.substr(0, 8);
  none[6] = '\0';
  EXPECT_FALSE(parse_tokens(none).ok());
}

TEST(Answers, WriteAndReadTheGoldenBytes) {
  const std::vector<SegmentAnswer> segments{{{kVectorSession, 3}, {9}, AnswerCode::kGap, {{2}, {4}, 8}}};
  EXPECT_EQ(static_cast<int>(AnswerCode::kGap), 6);
  EXPECT_EQ(encode_segment_answers(segments), read_vector("segment_answers.bin"));
  EXPECT_EQ(*parse_segment_answers(read_vector("segment_answers.bin")), segments);
  const std::vector<TokenAnswer> tokens{{kVectorSession, 8, TokenCode::kStaleGeneration}};
  EXPECT_EQ(encode_token_answers(tokens), read_vector("token_answers.bin"));
  EXPECT_EQ(*parse_token_answers(read_vector("token_answers.bin")), tokens);
}

TEST(Answers, UnknownCodesAndReservedBytesAreRefused) {
  std::string segments = read_vector("segment_answers.bin");
  std::string tokens = read_vector("token_answers.bin");
  segments[8 + 20] = '\x0a';
  tokens[8 + 20] = '\x05';
  EXPECT_FALSE(parse_segment_answers(segments).ok());
  EXPECT_FALSE(parse_token_answers(tokens).ok());
  segments = read_vector("segment_answers.bin");
  segments[8 + 21] = 1;
  EXPECT_FALSE(parse_segment_answers(segments).ok());
  EXPECT_FALSE(parse_segment_answers(read_vector("tokens.bin")).ok());
}

}  // namespace
}  // namespace mesh::wire
