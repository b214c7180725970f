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
