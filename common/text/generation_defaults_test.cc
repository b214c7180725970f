#include "common/text/generation_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace mesh {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(GenerationDefaults, GenerationConfigOverridesConfigAndMayListEosIds) {
  const auto both =
      GenerationDefaults::parse(R"({"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": null})",
                                R"({"eos_token_id": [9, 5, 9], "pad_token_id": 7})");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT(both->eos_ids, ElementsAre(5, 9));
  EXPECT_EQ(both->bos_id, 1);
  EXPECT_EQ(both->pad_id, 7);
  EXPECT_THAT(GenerationDefaults::parse(R"({"eos_token_id": 2})", "")->eos_ids, ElementsAre(2));
  EXPECT_THAT(GenerationDefaults::parse(R"({"text_config": {"eos_token_id": [3, 4]}})", "{}")->eos_ids,
              ElementsAre(3, 4));
  EXPECT_THAT(GenerationDefaults::parse("", "")->eos_ids, IsEmpty());
}

TEST(GenerationDefaults, SamplingCountsOnlyWhenTheModelSamples) {
  const auto sampled = GenerationDefaults::parse(
      "{}",
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1})");
  ASSERT_TRUE(sampled.ok()) << sampled.status();
  EXPECT_TRUE(sampled->do_sample);
  EXPECT_EQ(sampled->temperature, 0.6);
  EXPECT_EQ(sampled->top_p, 0.95);
  EXPECT_EQ(sampled->top_k, 20);
  EXPECT_EQ(sampled->min_p, 0.0);
  EXPECT_EQ(sampled->repetition_penalty, 1.0);
  const auto greedy = GenerationDefaults::parse("{}", R"({"temperature": 0.6, "top_k": 20})");
  EXPECT_FALSE(greedy->do_sample);
  EXPECT_EQ(greedy->temperature, std::nullopt);
  EXPECT_EQ(greedy->top_k, std::nullopt);
}

TEST(GenerationDefaults, WrongFieldsAreNamed) {
  const auto message = [](std::string_view generation) {
    const auto parsed = GenerationDefaults::parse("{}", generation);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << generation;
    return std::string(message_of(parsed.status()));
  };
  EXPECT_THAT(message(R"({"eos_token_id": "x"})"), HasSubstr("generation_config.json.eos_token_id"));
  EXPECT_THAT(message(R"({"eos_token_id": -1})"), HasSubstr("eos_token_id"));
  EXPECT_THAT(message(R"({"eos_token_id": [1, 99999999999]})"), HasSubstr("eos_token_id[1]"));
  EXPECT_THAT(message(R"({"do_sample": true, "top_p": 1.5})"), HasSubstr("top_p"));
  EXPECT_THAT(message(R"({"do_sample": true, "temperature": -1})"), HasSubstr("temperature"));
  EXPECT_THAT(message("{"), HasSubstr("generation_config.json"));
  EXPECT_THAT(message("[]"), HasSubstr("generation_config.json"));
}

}  // namespace
}  // namespace mesh
