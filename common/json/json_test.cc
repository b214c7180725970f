#include "common/json/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mesh::json {
namespace {

using ::testing::HasSubstr;

std::string refusal(std::string_view text, const Limits& limits = {}) {
  const auto result = parse(text, limits);
  EXPECT_FALSE(result.ok()) << text;
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  return std::string(message_of(result.status()));
}

TEST(Parse, KeepsValuesAndTheOrderOfKeys) {
  const std::string text = R"({"b":[1,-2,18446744073709551615,true,null,"é\n"],"a":{}})";
  const auto value = parse(text);
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(serialize(*value), text);
}

TEST(Parse, NumbersAreTheNearestDoubles) {
  EXPECT_EQ(parse(serialize(Value(0.1)))->as_double(), 0.1);
  EXPECT_EQ(parse("1e-05")->as_double(), 1e-05);
  EXPECT_EQ(parse("[444444444444444444444444444444444444441]")->at(0).as_double(),
            444444444444444444444444444444444444441.0);
  EXPECT_EQ(parse("-2.2250738585072014e-308")->as_double(), -2.2250738585072014e-308);
}

TEST(Parse, JoinsStringsThatComeInParts) {
  const std::string longish(100'000, 'x');
  const auto value = parse("{\"" + longish + "\":\"\\u00e9" + longish + "\\n\"}");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(value->at(longish).as_string().size(), longish.size() + 3);
}

TEST(Parse, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_THAT(refusal(R"({"model":"a","model":"b"})"), HasSubstr("duplicate key \"model\""));
  EXPECT_THAT(refusal(R"([{"x":{"k":1,"k":1}}])"), HasSubstr("duplicate key \"k\""));
  EXPECT_THAT(refusal("{\"a\":1,\"\\u0061\":2}"), HasSubstr("duplicate key"));
}

TEST(Parse, HoldsItsLimits) {
  EXPECT_THAT(refusal("[1,2,3]", {.max_bytes = 6}), HasSubstr("7 bytes is longer than the 6 allowed"));
  EXPECT_TRUE(parse("[1,2,3]", {.max_bytes = 7}).ok());
  EXPECT_TRUE(parse("[[[]]]", {.max_depth = 3}).ok());
  EXPECT_THAT(refusal("[[[[]]]]", {.max_depth = 3}), HasSubstr("deeper than 3"));
  EXPECT_THAT(refusal(std::string(900'000, '[')), HasSubstr("deeper than 32"));
  EXPECT_TRUE(parse("[1,2]", {.max_values = 3}).ok());
  EXPECT_THAT(refusal("[1,2]", {.max_values = 2}), HasSubstr("too many values"));
}

TEST(Parse, RefusesWhatIsNotJson) {
  for (const std::string_view text :
       {"", "{", "[1,]", "{\"a\":1}x", "{\"a\":1} {}", "NaN", "[Infinity]", "01", "'a'", "// c\n1",
        "\"\xff\"", "\"\xed\xa0\x80\"", "[1e999]", "\"a\nb\""}) {
    EXPECT_FALSE(parse(text).ok()) << text;
  }
  EXPECT_THAT(refusal(R"({"a":tru})"), HasSubstr("byte "));
}

TEST(Parse, AllowsSpaceAroundTheValue) {
  EXPECT_TRUE(parse(" \n{\"a\": 1}\n ").ok());
}

TEST(AsUtf8, ReplacesOnlyWhatIsNoUtf8) {
  EXPECT_EQ(as_utf8("é\"\n"), "é\"\n");
  EXPECT_EQ(as_utf8("a\xff\xc3"
                    "b"),
            "a??b");
}

}  // namespace
}  // namespace mesh::json
