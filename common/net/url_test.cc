#include "common/net/url.h"

#include <gtest/gtest.h>

namespace mesh::net {
namespace {

TEST(HostPort, ReadsNamesAndAddresses) {
  EXPECT_EQ(*HostPort::parse("127.0.0.1:8080"), (HostPort{"127.0.0.1", 8080}));
  EXPECT_EQ(*HostPort::parse("[::1]:0"), (HostPort{"::1", 0}));
  EXPECT_EQ(HostPort::parse("[::1]:80")->text(), "[::1]:80");
  for (const char* text : {"", "host", ":80", "host:", "host:65536", "host:-1", "host:8x", "::1:80", "[::1]",
                           "[::1]80", "[::1:80", "a b:80", "a/b:80", "user@host:80"}) {
    EXPECT_FALSE(HostPort::parse(text).ok()) << text;
  }
}

TEST(Url, ReadsSchemeHostPortAndPath) {
  const auto url = Url::parse("https://tracker.example/base?q=1");
  ASSERT_TRUE(url.ok());
  EXPECT_TRUE(url->https);
  EXPECT_EQ(url->at, (HostPort{"tracker.example", 443}));
  EXPECT_EQ(url->path, "/base?q=1");
  EXPECT_EQ(Url::parse("http://127.0.0.1:8070")->origin(), "http://127.0.0.1:8070");
  EXPECT_EQ(Url::parse("http://h")->at.port, 80);
}

TEST(Url, RefusesOtherSchemesUsersFragmentsAndControls) {
  for (const char* text :
       {"", "127.0.0.1:8080", "ftp://h/", "file:///etc/passwd", "http://", "http://user:pw@h/", "http://h/#x",
        "http://h?q", "http://h/a b", "http://h/\r\nX: y", "http://h:0/", "http://h:99999/",
        "https://[1%fb]:443/", "http://[host]:80/"}) {
    EXPECT_FALSE(Url::parse(text).ok()) << text;
  }
}

TEST(Percent, EncodesAllButUnreservedAndDecodesStrictly) {
  EXPECT_EQ(percent_encode("a/b c~é"), "a%2Fb%20c~%C3%A9");
  EXPECT_EQ(*percent_decode("a%2Fb%20c~%C3%A9"), "a/b c~é");
  for (const char* text : {"%", "%2", "%zz", "a%00b"}) EXPECT_FALSE(percent_decode(text).ok()) << text;
}

}  // namespace
}  // namespace mesh::net
