#include "common/config/toml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mesh::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(std::string_view text) {
  const auto entries = parse_toml(text);
  EXPECT_FALSE(entries.ok()) << text;
  return std::string(message_of(entries.status()));
}

TEST(ParseToml, ReadsScalarsAndListsInTheOrderOfTheirLines) {
  const auto entries = parse_toml(
      "# settings\nmemory = \"8GiB\"\n\nthreads = 4\nkeep = true\nratio = 0.5\nallow = [\n \"a\", 'b' ]\n");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 5u);
  EXPECT_EQ((*entries)[0].key, "memory");
  EXPECT_THAT((*entries)[0].values, ElementsAre("8GiB"));
  EXPECT_EQ((*entries)[0].line, 2u);
  EXPECT_THAT((*entries)[1].values, ElementsAre("4"));
  EXPECT_THAT((*entries)[2].values, ElementsAre("true"));
  EXPECT_THAT((*entries)[3].values, ElementsAre("0.5"));
  EXPECT_THAT((*entries)[4].values, ElementsAre("a", "b"));
  EXPECT_TRUE((*entries)[4].is_array);
  EXPECT_EQ((*entries)[4].line, 7u);
}

TEST(ParseToml, ErrorsNameTheLine) {
  EXPECT_THAT(refusal("a = 1\nb = \n"), HasSubstr("line 2"));
  EXPECT_THAT(refusal("a = 1\na = 2\n"), HasSubstr("line 2"));
  EXPECT_THAT(refusal("a = 1\n[table]\nb = 2\n"), HasSubstr("line 2"));
  EXPECT_THAT(refusal("a = [[1], [2]]\n"), HasSubstr("line 1"));
  EXPECT_THAT(refusal("a = 1979-05-27\n"), HasSubstr("line 1"));
  EXPECT_THAT(refusal("a = { b = 1 }\n"), HasSubstr("line 1"));
}

TEST(ParseToml, ReadsTextAsTheStandardSays) {
  const auto entries = parse_toml(
      "a = \"\\u00e9\\t\\\\ # \\\"\" # note\r\n'b c' = 'x\\n'\nd = [1_000, -0.5e3, \"é\", ]\ne = +7");
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_THAT((*entries)[0].values, ElementsAre("é\t\\ # \""));
  EXPECT_EQ((*entries)[1].key, "b c");
  EXPECT_THAT((*entries)[1].values, ElementsAre("x\\n"));
  EXPECT_THAT((*entries)[2].values, ElementsAre("1000", "-0.5e3", "é"));
  EXPECT_THAT((*entries)[3].values, ElementsAre("7"));
}

TEST(ParseToml, RefusesWhatIsNoToml) {
  for (const char* text : {"a",
                           "a =",
                           "= 1",
                           "a = b",
                           "a = 1 b = 2",
                           "a = \"x",
                           "a = 'x",
                           "a = \"\\q\"",
                           "a = \"\\ud800\"",
                           "a = 01",
                           "a = 1__0",
                           "a = 1.",
                           "a = .5",
                           "a = [1 2]",
                           "a = [1",
                           "a.b = 1",
                           "a = \"\"\"x\"\"\"",
                           "é = 1",
                           "a = 0x10",
                           "a = inf",
                           "a = 1\rb = 2"}) {
    refusal(text);
  }
}

TEST(ParseToml, HostileTextIsAnError) {
  refusal(std::string(kMaxTomlBytes + 1, '#'));
  refusal("a = " + std::string(100'000, '['));
  refusal("a = \"\xff\"");
  refusal(std::string("a = \0 1", 7));
  refusal("[ \x1f = 4RR\nkeep");
  std::string deep = "a";
  for (int i = 0; i < 50'000; ++i) deep += ".a";
  refusal(deep + " = 1");
}

}  // namespace
}  // namespace mesh::config
