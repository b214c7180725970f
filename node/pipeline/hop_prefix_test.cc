#include "node/pipeline/hop_fixture_for_test.h"

namespace mesh::pipeline {
namespace {

using wire::AnswerCode;
using wire::OpenCode;

/// A hop of layers [4, 8) with 8 bytes of cache a token: a block takes 1,024.
class Prefixes : public HopFixture {
 protected:
  static constexpr std::uint64_t kBlock = 1024;

  Prefixes() { use(10 * kBlock); }
  void use(std::uint64_t prefix_bytes, std::uint64_t cache_bytes = std::uint64_t{1} << 30) {
    options.prefix_bytes = prefix_bytes;
    options.cache_bytes = cache_bytes;
    std::destroy_at(&table);
    std::construct_at(&table, options);
  }
  static wire::OpenRequest offering(std::uint8_t number, std::size_t blocks, std::uint8_t salt = 1) {
    wire::OpenRequest r = middle();
    r.session = session(number);
    r.emit_from.reset();
    std::vector<TokenId> ids(blocks * 128, 7);
    wire::PrefixSalt key;
    key.bytes[0] = salt;
    r.prefix = wire::prefix_keys({}, key, ids);
    return r;
  }
  /// Feeds [from, to) of a session in chunks of at most 128 rows and computes them.
  void feed(std::uint8_t number, Position from, Position to) {
    for (std::uint64_t seq = 1; from < to; ++seq) {
      const auto rows = std::min<Position>(128, to - from);
      wire::Segment s = segment(seq, from, rows);
      s.session = session(number);
      ASSERT_EQ(accept(s), AnswerCode::kAccepted);
      run_steps();
      from += rows;
    }
  }
  template <class Order>
  std::vector<Order> take() {
    for (CacheOrder& order : table.take_orders()) orders.push_back(std::move(order));
    std::vector<Order> found;
    std::erase_if(orders, [&](const CacheOrder& order) {
      const auto* one = std::get_if<Order>(&order);
      if (one) found.push_back(*one);
      return one != nullptr;
    });
    return found;
  }

  std::vector<CacheOrder> orders;
};

TEST_F(Prefixes, ASecondPromptBeginsWithTheFullBlocksOfTheFirst) {
  EXPECT_EQ(open(offering(1, 3)).cursor.next, 0u);
  feed(1, 0, 300);
  const auto shared = take<ShareBlock>();
  ASSERT_EQ(shared.size(), 2u) << "the third block is not full yet";
  EXPECT_EQ(shared[1].index, 1u);
  table.close({session(1), {1}}, now);

  const wire::OpenReply reply = open(offering(2, 3));
  EXPECT_EQ(reply.cursor.next, 256u);
  EXPECT_EQ(reply.kept_from, 256u) << "it has no outputs before";
  const BeginCache begin = take<BeginCache>().back();
  EXPECT_EQ(begin.tokens, 256u);
  EXPECT_EQ(begin.blocks, (std::vector<PrefixBlockId>{shared[0].id, shared[1].id}));
  EXPECT_EQ(table.stats().prefix_hits, 256u);
  EXPECT_EQ(table.stats().prefix_misses, 3u * 128 + 128);
}

TEST_F(Prefixes, ASessionWithAHitGoesOnFromThereOrIsTrimmedBelowIt) {
  open(offering(1, 2));
  feed(1, 0, 256);
  open(offering(2, 2));
  wire::OpenRequest resume = middle();
  resume.session = session(2);
  resume.emit_from = 200;
  EXPECT_EQ(open(resume).code, OpenCode::kOpened);
  feed(2, 255, 256);
  EXPECT_EQ(table.stats().trims, 1u);
  const wire::CursorEntry entry = table.cursors({{{session(2), 4}}}).hops[0];
  EXPECT_EQ(entry.cursor.next, 256u);
  EXPECT_TRUE(take<ShareBlock>().size() == 2u) << "only the first session's: what is kept is not kept again";
  EXPECT_EQ(send_all(), "") << "positions below 255 are wanted first";
}

TEST_F(Prefixes, AnotherSaltHasNothingInCommon) {
  open(offering(1, 2, 1));
  feed(1, 0, 256);
  EXPECT_EQ(open(offering(2, 2, 9)).cursor.next, 0u);
}

TEST_F(Prefixes, AnOfferTooLongOrBesideEmitFromIsRefused) {
  wire::OpenRequest r = offering(1, 8);
  EXPECT_EQ(open(r).code, OpenCode::kBadRequest) << "1,000 tokens have 7 full blocks";
  r = offering(1, 2);
  r.emit_from = 0;
  EXPECT_EQ(open(r).code, OpenCode::kBadRequest);
  EXPECT_EQ(table.stats().sessions, 0u);
}

TEST_F(Prefixes, RowsWithPartsThatTheKeyDoesNotCoverAreNotKept) {
  open(offering(1, 2));
  wire::Segment s = segment(1, 0, 100);
  ASSERT_EQ(accept(s), AnswerCode::kAccepted);
  s = segment(2, 100, 156);
  s.spans = {{100, 120}};
  ASSERT_EQ(accept(s), AnswerCode::kAccepted);
  run_steps();
  EXPECT_TRUE(take<ShareBlock>().empty());
}

TEST_F(Prefixes, BlocksGoBeforeASessionIsRefused) {
  // Room for one session of 1,000 tokens (8 blocks) and three blocks.
  use(10 * kBlock, 11 * kBlock);
  open(offering(1, 3));
  feed(1, 0, 384);
  EXPECT_EQ(table.stats().prefix_bytes, 3 * kBlock);
  table.close({session(1), {1}}, now);
  const auto shared = take<ShareBlock>();
  wire::OpenRequest larger = offering(2, 3);
  larger.max_tokens = 1100;
  EXPECT_EQ(open(larger).cursor.next, 256u) << "the third block made room";
  const auto dropped = take<DropBlock>();
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].id, shared[2].id);
}

TEST_F(Prefixes, NoBlockIsKeptWhereSessionsLeaveNoRoom) {
  use(10 * kBlock, 10 * kBlock);
  open(offering(1, 3));
  feed(1, 0, 384);
  EXPECT_EQ(table.stats().prefix_bytes, 2 * kBlock);
}

TEST_F(Prefixes, ADropIsOrderedAfterTheBeginningThatUsesTheBlock) {
  use(2 * kBlock);
  open(offering(1, 2));
  feed(1, 0, 256);
  table.close({session(1), {1}}, now);
  open(offering(2, 2));
  table.shrink_prefixes(kBlock);
  std::vector<std::size_t> kinds;
  for (const CacheOrder& order : table.take_orders()) kinds.push_back(order.index());
  const CacheOrder begin = BeginCache{}, share = ShareBlock{}, drop = DropBlock{}, free = FreeCache{};
  EXPECT_EQ(kinds, (std::vector<std::size_t>{begin.index(), share.index(), share.index(), free.index(),
                                             begin.index(), drop.index()}));
}

TEST_F(Prefixes, ACacheThatCouldNotBeginFallsBackToNothing) {
  open(offering(1, 2));
  feed(1, 0, 256);
  open(offering(2, 2));
  wire::Segment s = segment(1, 256, 4);
  s.session = session(2);
  ASSERT_EQ(accept(s), AnswerCode::kAccepted);
  const auto work = table.next_step(now);
  ASSERT_TRUE(work);
  StepOutput output{work->id, {}};
  output.segments.push_back({.status = error(StatusCode::kResourceExhausted, "no memory"),
                             .cache_lost = true,
                             .hidden = nullptr,
                             .token = std::nullopt});
  table.step_done(output, now);
  EXPECT_EQ(table.next_report(now)->report.code, wire::ReportCode::kStepFailed);
  wire::OpenRequest fence = offering(2, 2);
  fence.generation = {2};
  EXPECT_EQ(open(fence).cursor.next, 0u);
}

TEST_F(Prefixes, ARangeWithoutLayersHasAllOfAnyOffer) {
  wire::OpenRequest r = offering(1, 3);
  r.range = {0, 0};
  r.takes_ids = true;
  EXPECT_EQ(open(r).cursor.next, 384u);
  EXPECT_EQ(table.stats().prefix_bytes, 0u);
}

}  // namespace
}  // namespace mesh::pipeline
