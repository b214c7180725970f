#include "tracker/head/head_fixture_for_test.h"

namespace mesh::head {
namespace {

class HeadPrefixTest : public HeadTableTest {
 protected:
  /// A prompt of `tokens` ids under a salt.
  void start_offering(std::size_t tokens) {
    StartRequest request;
    request.session = id;
    request.layers = 8;
    request.prompt.assign(tokens, 5);
    request.max_tokens = 4;
    request.salt = wire::PrefixSalt{};
    ASSERT_TRUE(table.start(request, now).ok());
    find_route();
  }
};

TEST_F(HeadPrefixTest, OffersTheFullBlocksFirstAndFeedsFromTheSmallestHit) {
  start_offering(400);
  const auto offers = open_all({{0, 384}, {1, 128}, {2, 256}}, {{0, 384}, {1, 128}, {2, 256}});
  ASSERT_EQ(offers.size(), 3u);
  for (const OpenHop& offer : offers) {
    EXPECT_FALSE(offer.request.emit_from);
    EXPECT_EQ(offer.request.generation, (Generation{1}));
    EXPECT_EQ(offer.request.prefix, wire::prefix_keys({}, {}, std::vector<TokenId>(400, 5)));
  }
  const auto resume = open_all();
  ASSERT_EQ(resume.size(), 3u);
  EXPECT_EQ(resume[2].request.emit_from, 399u);
  EXPECT_EQ(resume[1].request.emit_from, 256u) << "the tail has the tokens before";
  EXPECT_EQ(resume[0].request.emit_from, 128u) << "hop 0 has more, and computes again what hop 1 lacks";
  for (const OpenHop& opening : resume) EXPECT_TRUE(opening.request.prefix.empty());
  EXPECT_EQ(feed(), "128+128 256+128 384+16! ");
  EXPECT_EQ(table.stats().failovers, 0u);
}

TEST_F(HeadPrefixTest, OfAPromptThatEveryHopHasTheLastTokenIsComputed) {
  start_offering(256);
  open_all({{0, 256}, {1, 256}, {2, 256}}, {{0, 256}, {1, 256}, {2, 256}});
  for (const OpenHop& opening : open_all()) EXPECT_EQ(opening.request.emit_from, 255u);
  EXPECT_EQ(feed(), "255+1! ");
}

TEST_F(HeadPrefixTest, AHopThatSaysMoreThanWasOfferedIsTakenForLess) {
  start_offering(256);
  open_all({{0, 4'000'000'000}, {1, 256}, {2, 700}}, {{0, 4'000'000'000}, {1, 256}, {2, 700}});
  open_all();
  EXPECT_EQ(feed(), "255+1! ");
}

TEST_F(HeadPrefixTest, APromptWithoutAFullBlockIsOpenedInOneWave) {
  start_offering(127);
  EXPECT_EQ(open_all().at(0).request.emit_from, 0u);
  EXPECT_EQ(feed(), "0+127! ");
}

TEST_F(HeadPrefixTest, AReplacedHopIsOfferedThePromptToo) {
  start_offering(256);
  open_all({{0, 0}, {1, 0}, {2, 0}});
  open_all();
  feed();
  table.report(node(1), {{id, 2}, {1}, wire::ReportCode::kNextHopRefuses, 0, "unknown session"}, now);
  const auto fence = open_all({{0, 256}, {1, 256}, {2, 128}}, {{2, 128}});
  ASSERT_EQ(fence.size(), 3u);
  EXPECT_EQ(fence[2].request.prefix.size(), 2u);
  EXPECT_EQ(open_all().at(1).request.emit_from, 128u);
}

}  // namespace
}  // namespace mesh::head
