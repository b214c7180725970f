#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "common/net/client.h"
#include "common/net/test_tls_listener.h"

namespace mesh::net {
namespace {

using ::testing::HasSubstr;

class TlsTest : public ::testing::Test {
 protected:
  ~TlsTest() override { std::filesystem::remove(certificate_); }
  const std::string certificate_ =
      (std::filesystem::temp_directory_path() / ("meshnet-tls-" + std::to_string(::getpid()) + ".pem"))
          .string();
  const std::string answer_ = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + std::string(100'000, 'x');
};

TEST_F(TlsTest, ATrustedCertificateOfTheHostIsAccepted) {
  const TestTlsListener listener("IP:127.0.0.1", answer_, certificate_);
  const auto client = Client::make(listener.url(), {.ca_file = certificate_});
  ASSERT_TRUE(client.ok()) << client.status();
  for (int i = 0; i < 2; ++i) {
    const auto reply = (*client)->get("/");
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->body, std::string(100'000, 'x'));
  }
}

TEST_F(TlsTest, AStrangersCertificateIsRefused) {
  const TestTlsListener listener("IP:127.0.0.1", answer_, certificate_);
  const auto client = Client::make(listener.url());
  ASSERT_TRUE(client.ok()) << client.status();
  const auto reply = (*client)->get("/");
  EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(message_of(reply.status())), HasSubstr("certificate"));
}

TEST_F(TlsTest, ACertificateOfAnotherHostIsRefused) {
  const TestTlsListener listener("DNS:other.example,IP:127.0.0.2", answer_, certificate_);
  const auto client = Client::make(listener.url(), {.ca_file = certificate_});
  const auto reply = (*client)->get("/");
  EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(message_of(reply.status())), HasSubstr("mismatch"));
}

TEST_F(TlsTest, AMissingRootsFileIsSaid) {
  const auto client = Client::make("https://127.0.0.1", {.ca_file = "/nowhere.pem"});
  EXPECT_EQ(client.status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace mesh::net
