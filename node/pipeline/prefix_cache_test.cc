#include "node/pipeline/prefix_cache.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace mesh::pipeline {
namespace {

constexpr LayerRange kRange{4, 8};
constexpr std::uint64_t kBlock = 100;  // bytes

using Chain = std::vector<wire::PrefixKey>;

/// Keys that name (chain, place); chains share their first `common` keys.
Chain chain(std::uint8_t number, std::size_t blocks, std::size_t common = 0) {
  Chain keys(blocks);
  for (std::size_t i = 0; i < blocks; ++i) {
    keys[i].bytes[0] = i < common ? 0xff : number;
    keys[i].bytes[1] = static_cast<std::uint8_t>(i);
  }
  return keys;
}
std::span<const wire::PrefixKey> first(const Chain& keys, std::size_t count) {
  return std::span(keys).first(count);
}
std::size_t keep_all(PrefixCache& cache, const Chain& keys) {
  std::size_t kept = 0;
  for (std::size_t i = 1; i <= keys.size(); ++i) kept += cache.keep(kRange, first(keys, i), kBlock) ? 1 : 0;
  return kept;
}

TEST(PrefixCache, FindsTheLongestBeginningThatItKeeps) {
  PrefixCache cache(10 * kBlock);
  EXPECT_EQ(keep_all(cache, chain(1, 3)), 3u);
  EXPECT_EQ(cache.match(kRange, chain(1, 5)).size(), 3u);
  EXPECT_EQ(cache.match(kRange, chain(1, 2)).size(), 2u);
  EXPECT_EQ(cache.match(kRange, chain(2, 3)).size(), 0u);
  EXPECT_EQ(cache.match({4, 7}, chain(1, 3)).size(), 0u) << "of another range";
  EXPECT_EQ(cache.bytes(), 3 * kBlock);
  EXPECT_EQ(cache.layer_blocks(), 12u);
}

TEST(PrefixCache, KeepsNothingTwiceAndNothingWithoutTheBlockBefore) {
  PrefixCache cache(10 * kBlock);
  const Chain keys = chain(1, 3);
  EXPECT_FALSE(cache.keep(kRange, first(keys, 2), kBlock));
  EXPECT_TRUE(cache.keep(kRange, first(keys, 1), kBlock));
  EXPECT_FALSE(cache.keep(kRange, first(keys, 1), kBlock));
  EXPECT_FALSE(PrefixCache(0).keep(kRange, first(keys, 1), kBlock)) << "it is off";
}

TEST(PrefixCache, WhatWasUsedLongestAgoGoesFirstAndItsContinuationBeforeIt) {
  PrefixCache cache(5 * kBlock);
  keep_all(cache, chain(1, 2));
  keep_all(cache, chain(2, 2));
  keep_all(cache, chain(3, 1));
  cache.match(kRange, chain(1, 2));
  EXPECT_EQ(keep_all(cache, chain(4, 1)), 1u);
  EXPECT_EQ(cache.match(kRange, chain(2, 2)).size(), 1u) << "its second block went";
  EXPECT_EQ(cache.match(kRange, chain(1, 2)).size(), 2u);
  EXPECT_EQ(cache.take_dropped().size(), 1u);
  EXPECT_EQ(cache.evicted(), 1u);
}

TEST(PrefixCache, APromptLongerThanTheBudgetKeepsItsBeginning) {
  PrefixCache cache(3 * kBlock);
  EXPECT_EQ(keep_all(cache, chain(1, 8)), 3u);
  EXPECT_EQ(cache.match(kRange, chain(1, 8)).size(), 3u);
  EXPECT_TRUE(cache.take_dropped().empty());
}

TEST(PrefixCache, ShrinksByWhatIsAskedForOrEntirely) {
  PrefixCache cache(10 * kBlock);
  keep_all(cache, chain(1, 4));
  cache.shrink(kBlock + 1);
  EXPECT_EQ(cache.match(kRange, chain(1, 4)).size(), 2u);
  cache.shrink(~std::uint64_t{0});
  EXPECT_EQ(cache.bytes() + cache.layer_blocks(), 0u);
  EXPECT_EQ(cache.take_dropped().size(), 4u);
}

TEST(PrefixCache, ABlockThatTheEngineLostIsNotOfferedAndMayBeKeptAgain) {
  PrefixCache cache(10 * kBlock);
  const Chain keys = chain(1, 2);
  const auto id = cache.keep(kRange, first(keys, 1), kBlock);
  cache.lose(*id);
  EXPECT_TRUE(cache.match(kRange, keys).empty());
  EXPECT_NE(cache.keep(kRange, first(keys, 1), kBlock), id);
}

/// Against what must hold whatever is done in whatever order.
TEST(PrefixCache, UnderRandomUseNothingLeaksAndNoIdIsUsedTwice) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    PrefixCache cache((1 + below(12)) * kBlock);
    std::map<wire::PrefixKey, PrefixBlockId> kept;
    std::set<PrefixBlockId> ever;
    const auto note_dropped = [&] {
      for (const PrefixBlockId id : cache.take_dropped()) {
        EXPECT_EQ(std::erase_if(kept, [&](const auto& one) { return one.second == id; }), 1u);
      }
    };
    for (int step = 0; step < 300; ++step) {
      const Chain keys = chain(static_cast<std::uint8_t>(below(4)), 1 + below(6), below(3));
      const auto what = below(10);
      if (what < 6) {
        const auto id = cache.keep(kRange, keys, kBlock);
        note_dropped();
        if (id) {
          EXPECT_TRUE(ever.insert(*id).second) << "an id is used twice";
          EXPECT_TRUE(kept.emplace(keys.back(), *id).second);
        }
      } else if (what < 9) {
        const auto found = cache.match(kRange, keys);
        std::size_t expected = 0;
        while (expected < keys.size() && kept.contains(keys[expected])) ++expected;
        ASSERT_EQ(found.size(), expected) << "seed " << seed;
        for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], kept.at(keys[i]));
      } else {
        cache.shrink(below(3 * kBlock));
        note_dropped();
      }
      ASSERT_EQ(cache.bytes(), kept.size() * kBlock) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace mesh::pipeline
