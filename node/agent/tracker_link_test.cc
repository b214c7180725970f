#include "node/agent/tracker_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/identity/signed_message.h"
#include "common/net/server.h"

namespace mesh {
namespace {

using testing::HasSubstr;

/// Lets everybody in: the tests look at what the node does, not the tracker.
class Open final : public net::AccessPolicy {
 public:
  Status admit(net::Access, net::Request&) override { return absl::OkStatus(); }
  Status admit_body(net::Access, net::Request&) override { return absl::OkStatus(); }
};

/// A tracker that answers every heartbeat with `answer`, signed.
class TrackerLinkTest : public testing::Test {
 protected:
  TrackerLinkTest() {
    const auto handle = [this](net::Request& request) {
      last_ = request;
      net::Response response;
      response.status = status_;
      response.body = answer_;
      const MessageSignature signature = sign_message(key_, request.path, answer_);
      response.headers.add(kKeyHeader, signature.key_hex);
      response.headers.add(kSignatureHeader, signature.signature_hex);
      if (tampered_) response.body += " ";
      if (unsigned_) response.headers = {};
      return response;
    };
    std::vector<net::Route> routes;
    routes.push_back(
        {"POST", std::string(wire::kHeartbeatRoute), net::Access::kAnyone, handle, 1 << 20, false});
    auto started = net::Server::start({}, std::move(routes), std::make_shared<Open>());
    EXPECT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }

  StatusOr<std::string> call(const std::shared_ptr<TrackerLink::Pin>& pin,
                             std::optional<JoinKey> join_key = {}) {
    TrackerLink link({"http://" + server_->address(), identity_, join_key}, pin);
    refusal_ = {};
    return link.call(wire::kHeartbeatRoute, "{\"a\":1}", std::chrono::seconds(5), refusal_);
  }

  KeyPair key_ = KeyPair::generate();
  const std::shared_ptr<const KeyPair> identity_ = std::make_shared<const KeyPair>(KeyPair::generate());
  net::Request last_;
  std::string answer_ = "{\"ok\":true}";
  int status_ = 200;
  bool tampered_ = false;
  bool unsigned_ = false;
  wire::ControlError refusal_;
  std::unique_ptr<net::Server> server_;
};

TEST_F(TrackerLinkTest, CallsAreSignedAndProveTheJoinKey) {
  const JoinKey join_key = JoinKey::make(key_.public_key());
  const auto body = call(std::make_shared<TrackerLink::Pin>(join_key), join_key);
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(*body, answer_);
  const auto signer = verify_message(wire::kHeartbeatRoute, last_.body, last_.headers.get(kKeyHeader),
                                     last_.headers.get(kSignatureHeader));
  ASSERT_TRUE(signer.ok());
  EXPECT_EQ(*signer, identity_->public_key());
  const auto proof = Mac::parse(last_.headers.get(kJoinHeader));
  ASSERT_TRUE(proof.has_value());
  EXPECT_TRUE(join_key.verify_proof(last_.body, *proof));
}

TEST_F(TrackerLinkTest, AReplyThatWasTamperedWithIsRefused) {
  tampered_ = true;
  EXPECT_EQ(call(std::make_shared<TrackerLink::Pin>(std::nullopt)).status().code(),
            StatusCode::kUnauthenticated);
}

TEST_F(TrackerLinkTest, AnotherKeyThanTheJoinKeyNamesIsRefused) {
  const JoinKey other = JoinKey::make(KeyPair::generate().public_key());
  EXPECT_EQ(call(std::make_shared<TrackerLink::Pin>(other), other).status().code(),
            StatusCode::kPermissionDenied);
  EXPECT_EQ(refusal_.code, "signature");
}

TEST_F(TrackerLinkTest, WithoutAJoinKeyTheFirstKeySeenIsPinned) {
  const auto pin = std::make_shared<TrackerLink::Pin>(std::nullopt);
  EXPECT_FALSE(pin->key().has_value());
  ASSERT_TRUE(call(pin).ok());
  EXPECT_EQ(pin->key(), key_.public_key());
  key_ = KeyPair::generate();
  EXPECT_EQ(call(pin).status().code(), StatusCode::kPermissionDenied);
}

TEST_F(TrackerLinkTest, ARefusalKeepsItsCode) {
  status_ = 426;
  answer_ = R"({"error":{"code":"upgrade","message":"too old","install":"0.2.0"}})";
  EXPECT_FALSE(call(std::make_shared<TrackerLink::Pin>(std::nullopt)).ok());
  EXPECT_EQ(refusal_, (wire::ControlError{"upgrade", "too old", "0.2.0"}));
}

TEST_F(TrackerLinkTest, WithoutItsSignatureNobodyRefusesForAPinnedTracker) {
  const std::string refusal = R"({"error":{"code":"upgrade","message":"too old","install":"0.2.0"}})";
  const JoinKey join_key = JoinKey::make(key_.public_key());
  const auto seen = std::make_shared<TrackerLink::Pin>(std::nullopt);
  ASSERT_TRUE(call(seen).ok());
  status_ = 426;
  answer_ = refusal;
  const KeyPair own = key_;
  for (const auto& pin : {seen, std::make_shared<TrackerLink::Pin>(join_key)}) {
    key_ = own;
    EXPECT_FALSE(call(pin, join_key).ok());
    EXPECT_EQ(refusal_.code, "upgrade");
    unsigned_ = true;
    EXPECT_THAT(std::string(message_of(call(pin, join_key).status())), HasSubstr("did not sign"));
    EXPECT_EQ(refusal_, wire::ControlError{});
    unsigned_ = false;
  }
  // Another key's refusal: no reply of the tracker's came before the second.
  key_ = KeyPair::generate();
  EXPECT_EQ(call(seen).status().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(refusal_, wire::ControlError{});
  EXPECT_EQ(call(std::make_shared<TrackerLink::Pin>(join_key), join_key).status().code(),
            StatusCode::kPermissionDenied);
  EXPECT_EQ(refusal_.code, "signature");
}

TEST_F(TrackerLinkTest, BeforeAKeyIsPinnedAnUnsignedRefusalHelps) {
  status_ = 426;
  unsigned_ = true;
  answer_ = R"({"error":{"code":"upgrade","message":"too old","install":"0.2.0"}})";
  EXPECT_FALSE(call(std::make_shared<TrackerLink::Pin>(std::nullopt)).ok());
  EXPECT_EQ(refusal_.code, "upgrade");
}

TEST_F(TrackerLinkTest, AKeyThatChangesLaterEndsNothing) {
  const auto pin = std::make_shared<TrackerLink::Pin>(std::nullopt);
  ASSERT_TRUE(call(pin).ok());
  key_ = KeyPair::generate();
  EXPECT_THAT(std::string(message_of(call(pin).status())), HasSubstr("restart the node"));
  EXPECT_EQ(refusal_, wire::ControlError{});
  EXPECT_NE(pin->key(), key_.public_key());
}

TEST_F(TrackerLinkTest, TheListenerForClientsIsToldFromTheOneForNodes) {
  wire::ControlError refusal;
  TrackerLink link({"http://" + server_->address(), identity_, {}},
                   std::make_shared<TrackerLink::Pin>(std::nullopt));
  const auto body = link.call(wire::kJoinRoute, "{}", std::chrono::seconds(5), refusal);
  EXPECT_THAT(std::string(message_of(body.status())), HasSubstr("no listener for nodes"));
  EXPECT_THAT(std::string(message_of(body.status())), HasSubstr("8070"));
}

TEST(CheckDirectives, OnlyTheTrackersOwnSignatureOverTheTextCounts) {
  const KeyPair tracker = KeyPair::generate();
  wire::Directive directive;
  directive.id.bytes.fill(1);
  directive.layers = {0, 3};
  directive.quantization = "bfloat16";
  directive.expires_in_ms = 1000;
  wire::SignedDirective good;
  good.body = wire::to_json(directive);
  good.signature = std::string(tracker.sign(std::string(wire::kDirectiveSignaturePrefix) + good.body).view());
  wire::SignedDirective changed = good;
  changed.body.replace(changed.body.find("[0,3]"), 5, "[0,4]");
  wire::SignedDirective stranger = good;
  stranger.signature =
      std::string(KeyPair::generate().sign(std::string(wire::kDirectiveSignaturePrefix) + good.body).view());
  wire::SignedDirective unsaid = good;
  unsaid.body = "{}";
  unsaid.signature = std::string(tracker.sign(std::string(wire::kDirectiveSignaturePrefix) + "{}").view());

  const auto checked = check_directives({good, changed, stranger, unsaid}, tracker.public_key());
  ASSERT_EQ(checked.size(), 4u);
  EXPECT_TRUE(checked[0].signature.ok());
  EXPECT_EQ(checked[0].directive, directive);
  EXPECT_EQ(checked[1].signature.code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(checked[2].signature.code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(checked[3].signature.code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace mesh
