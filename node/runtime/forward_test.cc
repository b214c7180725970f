#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/identity/random.h"
#include "node/runtime/test_mesh.h"

namespace mesh {
namespace {

class ForwardTest : public testing::Test {
 protected:
  ForwardRequest request(LayerRange range) const {
    ForwardRequest request;
    request.identity = identity_;
    request.range = range;
    return request;
  }
  const ModelIdentity identity_ = random_id<ModelIdentity>();
  TestNode first_{identity_, {0, 3}};
  TestNode last_{identity_, {3, 6}};
  const std::vector<TokenId> prompt_{5, 6, 7};
};

TEST_F(ForwardTest, TwoNodesChainedGiveTheTailsIds) {
  ForwardRequest head = request({0, 3});
  head.ids = prompt_;
  head.rows = 3;
  const auto hidden = first_.node().forward(head);
  ASSERT_TRUE(hidden.ok()) << hidden.status();
  ASSERT_EQ(hidden->hidden.size(), 3u * FakeEngine::kHidden * 2);
  ForwardRequest tail = request({3, 6});
  tail.hidden = hidden->hidden;
  tail.rows = 3;
  const auto ids = last_.node().forward(tail);
  ASSERT_TRUE(ids.ok()) << ids.status();
  ASSERT_EQ(ids->ids.size(), 3u);
  EXPECT_EQ(ids->ids[2], FakeEngine::expected(prompt_, {{0, 3}, {3, 6}}, 1)[0]);
  EXPECT_EQ(first_.engine().open_caches(), 0u);
}

TEST_F(ForwardTest, ANamedSessionGoesOnWhereItWas) {
  ForwardRequest head = request({0, 3});
  head.session = "debug";
  head.ids = prompt_;
  head.rows = 3;
  const auto whole = first_.node().forward(head);
  ASSERT_TRUE(whole.ok());
  head.session = "other";
  head.ids = {5};
  head.rows = 1;
  ASSERT_TRUE(first_.node().forward(head).ok());
  head.ids = {6, 7};
  head.rows = 2;
  const auto rest = first_.node().forward(head);
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(rest->next, 3u);
  EXPECT_EQ(rest->hidden, whole->hidden.substr(FakeEngine::kHidden * 2));
}

TEST_F(ForwardTest, WhatItsSessionsHoldIsNotPromisedToOpenings) {
  // 4,096 positions of three layers take 192 bytes each.
  first_.engine().set_budget(FakeEngine::kShardBytes + std::uint64_t{4096 + 1024} * 192);
  ForwardRequest head = request({0, 3});
  head.session = "debug";
  head.ids = prompt_;
  head.rows = 3;
  ASSERT_TRUE(first_.node().forward(head).ok());
  wire::OpenRequest open;
  open.session = random_id<SessionId>();
  open.generation = {1};
  open.identity = identity_;
  open.range = {0, 3};
  open.takes_ids = true;
  open.max_tokens = 1025;
  open.next = wire::HopAddress{{}, "http://127.0.0.1:1", {3, 6}};
  open.head_url = "http://127.0.0.1:1";
  const wire::OpenReply refused = first_.node().open(open);
  EXPECT_EQ(refused.code, wire::OpenCode::kNoRoom);
  EXPECT_THAT(refused.message, testing::HasSubstr("196608 of 196608 are free"));
  open.max_tokens = 1024;
  EXPECT_TRUE(first_.node().open(open).opened());
}

TEST_F(ForwardTest, WrongInputsAreRefusedWithTheNumbers) {
  ForwardRequest tail = request({3, 6});
  tail.hidden = "abc";
  tail.rows = 3;
  EXPECT_THAT(last_.node().forward(tail).status().ToString(), testing::HasSubstr("48 bytes"));
  ForwardRequest outside = request({0, 4});
  outside.ids = {1};
  outside.rows = 1;
  EXPECT_EQ(first_.node().forward(outside).status().code(), StatusCode::kNotFound);
  ForwardRequest both = request({0, 3});
  both.ids = {1};
  both.hidden = "x";
  both.rows = 1;
  EXPECT_EQ(first_.node().forward(both).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace mesh
