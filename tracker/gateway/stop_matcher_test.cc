#include "tracker/gateway/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace mesh::gateway {
namespace {

std::string feed(StopMatcher& matcher, const std::vector<std::string>& pieces) {
  std::string out;
  for (const std::string& piece : pieces) out += matcher.push(piece);
  return out + matcher.finish();
}

TEST(StopMatcher, CutsBeforeTheStopString) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(feed(matcher, {"one ", "two END three"}), "one two ");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcher, FindsAStopStringAcrossPieces) {
  StopMatcher matcher({"\n\nUser:"});
  EXPECT_EQ(feed(matcher, {"hi\n", "\nUs", "er", ": more"}), "hi");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcher, GivesBackWhatOnlyBeganLikeOne) {
  StopMatcher matcher({"abcd"});
  EXPECT_EQ(matcher.push("xab"), "x");
  EXPECT_EQ(matcher.push("ce"), "abce");
  EXPECT_EQ(matcher.push("abc"), "");
  EXPECT_EQ(matcher.finish(), "abc");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, AFalseStartMayHideATrueOne) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(feed(matcher, {"a", "a", "a", "b"}), "a");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcher, TheEarliestOfSeveralCounts) {
  StopMatcher matcher({"world", "o w"});
  EXPECT_EQ(feed(matcher, {"hello world"}), "hell");
}

TEST(StopMatcher, NothingFollowsAMatch) {
  StopMatcher matcher({"x"});
  EXPECT_EQ(matcher.push("ax"), "a");
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, AgreesWithASearchInTheWholeTextForEveryCutting) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += static_cast<char>('a' + random() % 3);
    std::vector<std::string> stops;
    for (unsigned i = 0; i < 1 + random() % 3; ++i) {
      std::string stop;
      for (unsigned j = 0; j < 2 + random() % 4; ++j) stop += static_cast<char>('a' + random() % 3);
      stops.push_back(stop);
    }
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = random() % 4;
      pieces.push_back(text.substr(at, length));
      at += pieces.back().size();
    }
    // A stop string ends the text as soon as it is complete: the one that ends first, then the longest of
    // those.
    std::size_t end = std::string::npos;
    std::size_t begin = text.size();
    for (const std::string& stop : stops) {
      const std::size_t found = text.find(stop);
      if (found != std::string::npos) end = std::min(end, found + stop.size());
    }
    StopMatcher matcher(stops);
    const std::string out = feed(matcher, pieces);
    EXPECT_EQ(matcher.stopped(), end != std::string::npos);
    for (const std::string& stop : stops) {
      const std::size_t found = text.find(stop);
      if (found != std::string::npos) begin = std::min(begin, found);
    }
    EXPECT_EQ(text.substr(0, out.size()), out);
    for (const std::string& stop : stops) EXPECT_EQ(out.find(stop), std::string::npos);
    if (end == std::string::npos) {
      EXPECT_EQ(out, text);
    } else {
      EXPECT_LE(begin, out.size());
      EXPECT_LT(out.size(), end);
    }
  }
}

}  // namespace
}  // namespace mesh::gateway
