#include "node/engine/sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "node/engine/sampling/philox.h"

namespace mesh::engine {
namespace {

using ::testing::ElementsAre;

// kat_vectors of Random123, the lines of philox4x32 with 10 rounds.
TEST(Philox, GivesThePublishedVectors) {
  EXPECT_THAT(philox4x32({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Uniform, DependsOnSeedChoiceAndPosition) {
  EXPECT_EQ(uniform_for(0, 0, 0), static_cast<float>(0x6627e8) / 16777216.0f);
  EXPECT_NE(uniform_for(1, 0, 5), uniform_for(1, 0, 6));
  EXPECT_NE(uniform_for(1, 0, 5), uniform_for(1, 1, 5));
  EXPECT_NE(uniform_for(1, 0, 5), uniform_for(std::uint64_t{1} << 32, 0, 5));
}

TEST(Greedy, TakesTheLowestIdAmongEquals) {
  const std::vector<float> logits{1, 3, 3, 2};
  const SampledToken token = sample(logits, {}, 1, 3);
  EXPECT_EQ(token.id, 1);
  ASSERT_EQ(token.top.size(), 3u);
  EXPECT_THAT((std::vector<TokenId>{token.top[0].id, token.top[1].id, token.top[2].id}),
              ElementsAre(1, 2, 3));
  EXPECT_EQ(sample(logits, {}, 1, 0).id, 1);
  EXPECT_NEAR(token.logprob, 3 - std::log(std::exp(1) + 2 * std::exp(3) + std::exp(2)), 1e-6);
}

/// How often each id is drawn over many positions.
std::vector<double> shares(const std::vector<float>& logits, SamplingParams params) {
  constexpr int kDraws = 40000;
  std::vector<double> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    counts[static_cast<std::size_t>(sample(logits, params, static_cast<Position>(i), 0).id)] += 1.0 / kDraws;
  }
  return counts;
}

// 4 standard deviations of 40,000 draws are at most 0.01.
constexpr double kTolerance = 0.01;

TEST(Draws, FollowTheSoftmaxAtTheTemperature) {
  const std::vector<float> logits{std::log(0.1f), std::log(0.6f), std::log(0.3f)};
  const auto plain = shares(logits, {.temperature = 1, .seed = 7});
  EXPECT_NEAR(plain[0], 0.1, kTolerance);
  EXPECT_NEAR(plain[1], 0.6, kTolerance);
  const auto sharp = shares(logits, {.temperature = 0.5f, .seed = 7});
  EXPECT_NEAR(sharp[1], 0.36 / (0.01 + 0.36 + 0.09), kTolerance);
}

TEST(Draws, KeepTopKAndTopPOnly) {
  const std::vector<float> logits{std::log(0.1f), std::log(0.5f), std::log(0.3f), std::log(0.1f)};
  const auto two = shares(logits, {.temperature = 1, .top_k = 2, .seed = 3});
  EXPECT_NEAR(two[1], 0.5 / 0.8, kTolerance);
  EXPECT_EQ(two[0] + two[3], 0);
  const auto mass = shares(logits, {.temperature = 1, .top_p = 0.6f, .seed = 3});
  EXPECT_NEAR(mass[2], 0.3 / 0.8, kTolerance);
  EXPECT_EQ(mass[0] + mass[3], 0);
  const auto one = shares(logits, {.temperature = 1, .top_p = 0.01f, .seed = 3});
  EXPECT_EQ(one[0] + one[2] + one[3], 0);
}

TEST(Draws, AreTheSameAgainAndDifferWithTheSeed) {
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  int differ = 0;
  for (Position position = 0; position < 50; ++position) {
    const TokenId first = sample(logits, {.temperature = 1, .seed = 1}, position, 0).id;
    EXPECT_EQ(first, sample(logits, {.temperature = 1, .seed = 1}, position, 5).id);
    differ += first != sample(logits, {.temperature = 1, .seed = 2}, position, 0).id;
  }
  EXPECT_GT(differ, 40);
}

TEST(SamplingParams, OutsideOfTheirRangeAreRefused) {
  EXPECT_TRUE(check_sampling({}).ok());
  EXPECT_FALSE(check_sampling({.temperature = -1}).ok());
  EXPECT_FALSE(check_sampling({.temperature = std::numeric_limits<float>::quiet_NaN()}).ok());
  EXPECT_FALSE(check_sampling({.top_p = 0}).ok());
  EXPECT_FALSE(check_sampling({.top_p = 1.5f}).ok());
}

}  // namespace
}  // namespace mesh::engine
