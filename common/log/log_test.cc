#include "common/log/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json/view.h"

namespace mesh::log {
namespace {

using ::testing::IsEmpty;
using ::testing::MatchesRegex;

class LogTest : public ::testing::Test {
 protected:
  Logger logger(Format format, Level level = Level::kInfo) {
    return Logger({.level = level, .format = format, .sink = [this](std::string_view line) {
                     lines_.emplace_back(line);
                   }});
  }
  std::vector<std::string> lines_;
};

TEST_F(LogTest, TextLineHasTimeLevelMessageAndFields) {
  const auto session = *SessionId::parse("000102030405060708090a0b0c0d0e0f");
  logger(Format::kText).with_session(session).with_request("req-1").warning("route of {} hops", 3);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], MatchesRegex("[0-9-]+T[0-9:.]+Z warning route of 3 hops "
                                      "session=000102030405060708090a0b0c0d0e0f request=req-1"));
}

TEST_F(LogTest, JsonLineParsesWhateverTheFieldsHold) {
  logger(Format::kJson).with("peer", "a\"b\nc\xff").error("100% of {}", "x\"y");
  ASSERT_EQ(lines_.size(), 1u);
  const auto parsed = json::parse(lines_[0]);
  ASSERT_TRUE(parsed.ok()) << lines_[0];
  const json::View view(*parsed);
  EXPECT_EQ(*view.get<std::string>("message"), "100% of x\"y");
  EXPECT_EQ(*view.get<std::string>("level"), "error");
  EXPECT_EQ(*view.get<std::string>("peer"), "a\"b\nc?");
}

TEST_F(LogTest, APeersBytesCannotForgeALine) {
  logger(Format::kText).with("name", "x\n2026 error forged").info("got \n\x1b[31m{}", "a\rb");
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0].find_first_of("\n\r\x1b"), std::string::npos) << lines_[0];
}

TEST_F(LogTest, LevelsBelowTheOneChosenAreNotWritten) {
  const Logger quiet = logger(Format::kText, Level::kWarning);
  quiet.debug("no");
  quiet.info("no");
  EXPECT_THAT(lines_, IsEmpty());
  EXPECT_FALSE(quiet.enabled(Level::kInfo));
  quiet.error("yes");
  EXPECT_EQ(lines_.size(), 1u);
  Logger::silent().error("nowhere");
}

TEST_F(LogTest, AFieldBelongsToTheLoggerThatGotIt) {
  const Logger plain = logger(Format::kText);
  plain.with("a", "1").info("x");
  plain.info("x");
  EXPECT_NE(lines_[0].find("a=1"), std::string::npos);
  EXPECT_EQ(lines_[1].find("a=1"), std::string::npos);
}

TEST(LogOptions, ParseByName) {
  EXPECT_EQ(*parse_level("debug"), Level::kDebug);
  EXPECT_EQ(*parse_format("json"), Format::kJson);
  EXPECT_FALSE(parse_level("verbose").ok());
  EXPECT_FALSE(parse_format("xml").ok());
}

}  // namespace
}  // namespace mesh::log
