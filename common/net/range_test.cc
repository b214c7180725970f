#include "common/net/range.h"

#include <gtest/gtest.h>

namespace mesh::net {
namespace {

// RFC 9110, 14.1.2 and 14.2, against a file of 10,000 bytes as in its examples.
TEST(ParseRange, FollowsTheStandardsExamples) {
  EXPECT_EQ(*parse_range("bytes=0-499", 10000), (ByteRange{0, 500}));
  EXPECT_EQ(*parse_range("bytes=500-999", 10000), (ByteRange{500, 1000}));
  EXPECT_EQ(*parse_range("bytes=-500", 10000), (ByteRange{9500, 10000}));
  EXPECT_EQ(*parse_range("bytes=9500-", 10000), (ByteRange{9500, 10000}));
}

TEST(ParseRange, ClampsToTheFile) {
  EXPECT_EQ(*parse_range("bytes=9999-20000", 10000), (ByteRange{9999, 10000}));
  EXPECT_EQ(*parse_range("bytes=-20000", 10000), (ByteRange{0, 10000}));
  EXPECT_EQ(*parse_range("bytes=0-99999999999999999999999", 10000), (ByteRange{0, 10000}));
}

TEST(ParseRange, OutsideTheFileIsAnError) {
  for (const char* text : {"bytes=10000-", "bytes=10000-10001", "bytes=-0", "bytes=99999999999999999999-"}) {
    EXPECT_EQ(parse_range(text, 10000).status().code(), StatusCode::kOutOfRange) << text;
  }
  EXPECT_EQ(parse_range("bytes=0-", 0).status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(parse_range("bytes=-5", 0).status().code(), StatusCode::kOutOfRange);
}

TEST(ParseRange, WhatIsNoSingleRangeMeansTheWholeFile) {
  for (const char* text : {"", "bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=5-4", "bytes=0-1,3-4",
                           "items=0-1", "bytes=1 - 2", "bytes=+1-2", "bytes=0x1-2", "bytes 0-1"}) {
    const auto range = parse_range(text, 10000);
    ASSERT_TRUE(range.ok()) << text;
    EXPECT_EQ(*range, std::nullopt) << text;
  }
}

TEST(ContentRange, RoundTripsAndRefusesWhatIsMalformed) {
  EXPECT_EQ(range_header({42, 1234}), "bytes=42-1233");
  EXPECT_EQ(content_range_header({42, 1234}, 1234), "bytes 42-1233/1234");
  const auto parsed = parse_content_range("bytes 42-1233/1234");
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->range, (ByteRange{42, 1234}));
  EXPECT_EQ(parsed->size, 1234u);
  EXPECT_EQ(parse_content_range("bytes 0-0/*")->size, std::nullopt);
  for (const char* text : {"", "bytes 42-1233/1233", "bytes 5-4/10", "bytes */10", "bytes 1-2", "bytes 1/2-3",
                           "bytes 0-18446744073709551615/*", "bytes a-b/c"}) {
    EXPECT_FALSE(parse_content_range(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace mesh::net
