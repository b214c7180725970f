#include "common/net/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mesh::net {
namespace {

using ::testing::HasSubstr;

TEST(ClassifyHost, LocalhostIsLoopbackAndOtherNamesAreNoAddress) {
  EXPECT_EQ(*classify_host("localhost"), AddressKind::kLoopback);
  EXPECT_EQ(*classify_host("10.0.0.1"), AddressKind::kPrivate);
  EXPECT_FALSE(classify_host("example.org").ok());
  EXPECT_TRUE(is_loopback("localhost") && is_loopback("127.0.0.9") && is_loopback("::1"));
  EXPECT_FALSE(is_loopback("10.0.0.1") || is_loopback("localhost.example") || is_loopback(""));
}

TEST(ClassifyAddress, KnowsTheSpecialPurposeRegistry) {
  const std::pair<const char*, AddressKind> cases[] = {
      {"127.0.0.1", AddressKind::kLoopback},
      {"127.255.255.255", AddressKind::kLoopback},
      {"10.1.2.3", AddressKind::kPrivate},
      {"172.16.0.1", AddressKind::kPrivate},
      {"172.31.255.255", AddressKind::kPrivate},
      {"172.32.0.1", AddressKind::kPublic},
      {"192.168.1.1", AddressKind::kPrivate},
      {"192.169.1.1", AddressKind::kPublic},
      {"100.64.0.1", AddressKind::kCgnat},
      {"100.127.255.255", AddressKind::kCgnat},
      {"100.128.0.1", AddressKind::kPublic},
      {"169.254.169.254", AddressKind::kLinkLocal},
      {"8.8.8.8", AddressKind::kPublic},
      {"0.0.0.0", AddressKind::kReserved},
      {"0.1.2.3", AddressKind::kReserved},
      {"224.0.0.1", AddressKind::kReserved},
      {"255.255.255.255", AddressKind::kReserved},
      {"192.0.2.1", AddressKind::kReserved},
      {"198.18.0.1", AddressKind::kReserved},
      {"::1", AddressKind::kLoopback},
      {"::", AddressKind::kReserved},
      {"::7f00:1", AddressKind::kReserved},
      {"fe80::1", AddressKind::kLinkLocal},
      {"fe80::1%eth0", AddressKind::kLinkLocal},
      {"fd12::1", AddressKind::kPrivate},
      {"fc00::", AddressKind::kPrivate},
      {"2606:4700::1111", AddressKind::kPublic},
      {"ff02::1", AddressKind::kReserved},
      {"2001:db8::1", AddressKind::kReserved},
      {"2002:7f00:1::", AddressKind::kReserved},
      {"64:ff9b::7f00:1", AddressKind::kReserved},
      {"2001::1", AddressKind::kReserved},
      {"::ffff:127.0.0.1", AddressKind::kLoopback},
      {"::ffff:10.0.0.1", AddressKind::kPrivate},
      {"::ffff:8.8.8.8", AddressKind::kPublic},
      {"fec0::1", AddressKind::kReserved},
  };
  for (const auto& [ip, kind] : cases) {
    const auto got = classify_address(ip);
    ASSERT_TRUE(got.ok()) << ip;
    EXPECT_EQ(*got, kind) << ip << " is " << to_string(*got);
  }
}

TEST(ClassifyAddress, TakesOnlyNumericAddresses) {
  for (const char* text :
       {"", "localhost", "127.1", "0x7f.0.0.1", "2130706433", "127.0.0.1 ", "1.2.3.4.5", "[::1]"}) {
    EXPECT_FALSE(classify_address(text).ok()) << text;
  }
}

TEST(AddressPolicy, DefaultIsTheOwnKindAndWider) {
  EXPECT_TRUE(AddressPolicy::for_peers_of(AddressKind::kLoopback).allows(AddressKind::kLoopback));
  EXPECT_TRUE(AddressPolicy::for_peers_of(AddressKind::kLoopback).allows(AddressKind::kPublic));
  EXPECT_EQ(AddressPolicy::for_peers_of(AddressKind::kPrivate).text(), "private,public");
  EXPECT_EQ(AddressPolicy::for_peers_of(AddressKind::kReserved).text(), "private,public");
  EXPECT_EQ(AddressPolicy::for_peers_of(AddressKind::kPublic).text(), "public");
  EXPECT_FALSE(AddressPolicy::any().allows(AddressKind::kReserved));
}

TEST(AddressPolicy, ParsesItsTextAndNamesABadWord) {
  EXPECT_EQ(AddressPolicy::parse("public,loopback")->text(), "loopback,public");
  for (const char* text : {"", "public,,private", "reserved", "all"}) {
    EXPECT_FALSE(AddressPolicy::parse(text).ok()) << text;
  }
}

TEST(ResolveAllowed, RefusesByClassAndSaysWhich) {
  const auto policy = *AddressPolicy::parse("public");
  const auto refused = resolve_allowed("localhost", policy);
  EXPECT_EQ(refused.status().code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(message_of(refused.status())), HasSubstr("loopback"));
  EXPECT_EQ(resolve_allowed("169.254.169.254", policy).status().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(resolve_allowed("::ffff:127.0.0.1", policy).status().code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(*resolve_allowed("127.0.0.1", AddressPolicy::any()), ::testing::ElementsAre("127.0.0.1"));
  EXPECT_EQ(resolve_allowed("0.0.0.0", AddressPolicy::any()).status().code(), StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace mesh::net
