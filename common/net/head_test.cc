#include "common/net/head.h"

#include <gtest/gtest.h>

#include "common/net/error_response.h"
#include "common/net/limits.h"

namespace mesh::net {
namespace {

TEST(Head, EndsWithTheFirstEmptyLine) {
  EXPECT_EQ(head_size("GET / HTTP/1.1\r\n\r\nbody\r\n\r\n"), 18u);
  EXPECT_EQ(head_size("GET / HTTP/1.1\r\nA: b\r\n"), std::nullopt);
  EXPECT_EQ(head_size("GET / HTTP/1.1\n\n"), std::nullopt);
}

TEST(Head, IsSearchedOnFromWhereItWasSearched) {
  const std::string head = "GET / HTTP/1.1\r\n\r\n";
  for (std::size_t searched = 0; searched < head.size(); ++searched)
    EXPECT_EQ(head_size(head, searched), head.size()) << searched;
}

TEST(Head, LinesThatServersReadInDifferentWaysAreMalformed) {
  const std::string line = "POST / HTTP/1.1\r\n";
  const auto status = [&](const std::string& headers) {
    return http_status_of(check_head(line + headers + "\r\n\r\n"));
  };
  EXPECT_TRUE(check_head(line + "X-a_b.c~1!#$%&'*+^`|: any \t \xc3\xa9 value\r\nB:\r\n\r\n").ok());
  for (const std::string header : {"Content-Length : 5", "Content-Length\t: 5", " Content-Length: 5",
                                   "A: b\r\n folded", ": no name", "no colon", "Content-\x01Length: 5",
                                   "A\xc3\xa9: b", "A: b\nContent-Length: 5", "A: b\rC: d", "A: \x7f"}) {
    EXPECT_EQ(status(header), 400) << header;
  }
  EXPECT_EQ(status(std::string("A: b\0c", 6)), 400);
  EXPECT_EQ(http_status_of(check_head("GET /\n HTTP/1.1\r\n\r\n")), 400);
}

TEST(Head, LimitsAreInclusive) {
  const std::string line = "GET / HTTP/1.1\r\n";
  std::string headers;
  for (std::size_t i = 0; i < limits::kMaxHeaderCount; ++i) headers += "A: b\r\n";
  EXPECT_TRUE(check_head(line + headers + "\r\n").ok());
  EXPECT_EQ(http_status_of(check_head(line + headers + "A: b\r\n\r\n")), 431);
  EXPECT_EQ(http_status_of(check_head(std::string(limits::kMaxTargetBytes + 1, 'a') + "\r\n\r\n")), 414);
}

TEST(BodyFraming, ReadsLengthOrChunks) {
  EXPECT_FALSE(body_framing({})->has_body());
  EXPECT_FALSE(body_framing({{"Content-Length", "0"}})->has_body());
  EXPECT_EQ(body_framing({{"content-length", "18446744073709551615"}})->length, ~std::uint64_t{0});
  EXPECT_TRUE(body_framing({{"Transfer-Encoding", "Chunked"}})->chunked);
}

TEST(BodyFraming, RefusesAmbiguity) {
  EXPECT_FALSE(body_framing({{"Content-Length", "1"}, {"Content-Length", "1"}}).ok());
  EXPECT_FALSE(body_framing({{"Content-Length", "1"}, {"Transfer-Encoding", "chunked"}}).ok());
  EXPECT_FALSE(body_framing({{"Transfer-Encoding", "gzip, chunked"}}).ok());
  for (const char* length : {"", "-1", "+1", "1 ", "0x1", "1,1", "18446744073709551616"}) {
    EXPECT_FALSE(body_framing({{"Content-Length", length}}).ok()) << length;
  }
}

TEST(Headers, CannotSmuggleAFieldIntoAnother) {
  Headers headers;
  headers.add("X-A\r\nEvil", "b\r\nEvil: yes\x7f");
  EXPECT_EQ(headers.get("X-AEvil"), "bEvil: yes");
  EXPECT_EQ(headers.count("evil"), 0u);
}

}  // namespace
}  // namespace mesh::net
