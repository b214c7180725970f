#include <map>
#include <random>

#include "node/engine/cache/stamped_caches_for_test.h"

namespace mesh::engine {
namespace {

using SharedBlocks = StampedCaches;

TEST_F(SharedBlocks, ACacheBeginsWithBlocksOfAnotherWithoutACopy) {
  const CacheId first = open();
  write(first, 0, counting(1, 300));
  const std::vector<Handle> blocks{*caches.share(first, 0), *caches.share(first, 1)};
  EXPECT_EQ(caches.shared_blocks(), 4u);
  EXPECT_EQ(caches.share(first, 2).status().code(), StatusCode::kOutOfRange) << "it has 44 tokens";
  const CacheId second = open();
  ASSERT_TRUE(caches.attach(second, blocks, 256).ok());
  EXPECT_EQ(caches.state(second)->next, 256u);
  EXPECT_EQ(read(second), counting(1, 256));
  for (const std::byte* place : places(second)) EXPECT_TRUE(places(first).contains(place));
  caches.close(first);
  EXPECT_EQ(read(second), counting(1, 256)) << "the other one is gone";
}

TEST_F(SharedBlocks, WritingIntoASharedBlockWritesACopy) {
  const CacheId first = open();
  write(first, 0, counting(1, 256));
  std::vector<Handle> blocks{*caches.share(first, 0), *caches.share(first, 1)};
  const CacheId second = open();
  ASSERT_TRUE(caches.attach(second, blocks, 256).ok());
  write(second, 200, {7777});
  EXPECT_EQ(read(first), counting(1, 256));
  Stamps expected = counting(1, 201);
  expected[200] = 7777;
  EXPECT_EQ(read(second), expected);
  write(first, 10, {8888});
  const CacheId third = open();
  ASSERT_TRUE(caches.attach(third, blocks, 256).ok());
  EXPECT_EQ(read(third), counting(1, 256)) << "what is kept never changes, whoever wrote it first";

  blocks.clear();
  caches.close(third);
  const auto before = places(second);
  write(second, 100, {9999});
  const auto after = places(second);
  EXPECT_EQ(after, before) << "nobody else holds its blocks any more";
}

TEST_F(SharedBlocks, BlocksThatDoNotFitAreRefused) {
  const CacheId first = open();
  write(first, 0, counting(1, 128));
  const std::vector<Handle> one{*caches.share(first, 0)};
  const CacheId other_range = *caches.open(model, {2, 5}, kLayout, 1000);
  EXPECT_EQ(caches.attach(other_range, one, 128).code(), StatusCode::kInvalidArgument);
  ModelIdentity other;
  other.bytes[0] = 1;
  EXPECT_EQ(caches.attach(*caches.open(other, kRange, kLayout, 1000), one, 128).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(caches.attach(open(), one, 256).code(), StatusCode::kInvalidArgument) << "too few";
  EXPECT_EQ(caches.attach(open(), one, 100).code(), StatusCode::kInvalidArgument) << "not whole";
  EXPECT_EQ(caches.attach(open(100), one, 128).code(), StatusCode::kInvalidArgument) << "no room";
  EXPECT_EQ(caches.attach(first, one, 128).code(), StatusCode::kInvalidArgument) << "it has tokens";
  const CacheId no_layers = *caches.open(model, {0, 0}, kLayout, 1000);
  EXPECT_TRUE(caches.attach(no_layers, {}, 384).ok());
  EXPECT_EQ(caches.state(no_layers)->next, 384u);
}

TEST_F(SharedBlocks, AHandleCountsInTheBudget) {
  const CacheId first = open(128);
  write(first, 0, counting(1, 128));
  const std::uint64_t alone = budget.totals().free();
  Handle block = *caches.share(first, 0);
  EXPECT_LT(budget.totals().free(), alone);
  auto rest = budget.reserve(MemoryUseKind::kWeights, budget.totals().free(), "the rest");
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(caches.share(first, 0).status().code(), StatusCode::kResourceExhausted);
  block.reset();
  EXPECT_TRUE(caches.share(first, 0).ok());
  EXPECT_EQ(caches.shared_blocks(), 0u);
}

/// Sessions that write, trim, keep blocks, begin with blocks and end, in random order: each reads what it
/// wrote.
TEST_F(SharedBlocks, UnderRandomUseEverybodyReadsItsOwnTokens) {
  struct Kept {
    std::vector<Handle> blocks;
    Stamps stamps;
  };
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    std::map<CacheId, Stamps> sessions;
    std::vector<Kept> kept;
    std::uint32_t stamp = 0;
    for (int step = 0; step < 200; ++step) {
      if (sessions.empty() || below(8) == 0) {
        const CacheId id = open();
        Stamps stamps;
        if (!kept.empty() && below(4) != 0) {
          const Kept& from = kept[below(kept.size())];
          const std::size_t count = 1 + below(from.blocks.size());
          ASSERT_TRUE(
              caches.attach(id, std::span(from.blocks).first(count), static_cast<Position>(count * 128))
                  .ok());
          stamps.assign(from.stamps.begin(), from.stamps.begin() + static_cast<std::ptrdiff_t>(count * 128));
        }
        sessions.emplace(id, stamps);
        continue;
      }
      auto at = sessions.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(below(sessions.size())));
      auto& [id, stamps] = *at;
      const auto what = below(10);
      if (what < 5 && stamps.size() < 800) {
        const std::size_t start = below(3) == 0 ? below(stamps.size() + 1) : stamps.size();
        const Stamps more = counting(stamp, 1 + below(200));
        stamp += 200;
        stamps.resize(start);
        stamps.insert(stamps.end(), more.begin(), more.end());
        write(id, static_cast<Position>(start), more);
      } else if (what < 7 && stamps.size() >= 128) {
        Kept& keep = kept.emplace_back();
        const std::size_t count = 1 + below(stamps.size() / 128);
        for (std::uint32_t i = 0; i < count; ++i) keep.blocks.push_back(*caches.share(id, i));
        keep.stamps.assign(stamps.begin(), stamps.begin() + static_cast<std::ptrdiff_t>(count * 128));
      } else if (what < 8 && !kept.empty()) {
        kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(below(kept.size())));
      } else if (what < 9) {
        ASSERT_EQ(read(id), stamps) << "seed " << seed;
      } else {
        caches.close(id);
        sessions.erase(at);
      }
    }
    for (const auto& [id, stamps] : sessions) {
      ASSERT_EQ(read(id), stamps) << "seed " << seed;
      caches.close(id);
    }
    kept.clear();
    ASSERT_EQ(budget.totals().free(), kBudget) << "seed " << seed;
    ASSERT_EQ(caches.shared_blocks(), 0u);
  }
}

}  // namespace
}  // namespace mesh::engine
