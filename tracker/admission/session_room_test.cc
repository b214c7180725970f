#include "tracker/admission/session_room.h"

#include <gtest/gtest.h>

namespace mesh::tracker {
namespace {

NodeId node(char digit) {
  return *NodeId::parse(std::string(64, digit));
}

/// Four layers of 10 bytes a token: a block of 128 tokens takes 1,280 bytes a layer.
const CacheShape kFour{{10, 10, 10, 10}, {}};

TEST(SessionRoom, ASessionFitsWhereEachPartFits) {
  const std::vector<CopyRoom> copies{{{node('1'), {0, 2}}, 2 * 1280}, {{node('2'), {2, 4}}, 5 * 1280}};
  EXPECT_FALSE(find_room(kFour, copies, 1));
  EXPECT_FALSE(find_room(kFour, copies, 128));
}

TEST(SessionRoom, ANodeThatIsTooSmallIsNamedWithTheNumbersAndWhatWouldFit) {
  const std::vector<CopyRoom> copies{{{node('1'), {0, 2}}, 100 * 1280}, {{node('2'), {2, 4}}, 6 * 1280 + 5}};
  const auto no = find_room(kFour, copies, 500);  // 4 blocks
  ASSERT_TRUE(no);
  EXPECT_EQ(no->node, node('2'));
  EXPECT_EQ(no->free_bytes, 6u * 1280 + 5);
  EXPECT_EQ(no->layers, (LayerRange{2, 4})) << "either layer alone would fit";
  EXPECT_EQ(no->needed_bytes, 8u * 1280);
  EXPECT_EQ(no->most_tokens, 3u * 128) << "3 blocks of both layers";
}

TEST(SessionRoom, PartsMayEndWhereCopiesOverlap) {
  // Neither holds three layers of 2 blocks, but [0, 2) and [2, 4) fit.
  const std::vector<CopyRoom> copies{{{node('1'), {0, 3}}, 4 * 1280}, {{node('2'), {1, 4}}, 4 * 1280}};
  EXPECT_FALSE(find_room(kFour, copies, 256));
  EXPECT_TRUE(find_room(kFour, copies, 4 * 128 + 1)) << "not even one layer";
}

TEST(SessionRoom, ModelsAreCutOnlyWhereTheyMayBe) {
  const CacheShape cut_at_one{{10, 10, 10, 10}, {1}};
  const std::vector<CopyRoom> copies{{{node('1'), {0, 2}}, 4 * 1280}, {{node('2'), {1, 4}}, 5 * 1280}};
  const auto no = find_room(cut_at_one, copies, 256);
  ASSERT_TRUE(no);
  EXPECT_EQ(no->layers, (LayerRange{1, 4}));
  EXPECT_EQ(no->needed_bytes, 6u * 1280);
  EXPECT_EQ(no->most_tokens, 128u);
}

TEST(SessionRoom, TheLargestOfSeveralCopiesCounts) {
  const std::vector<CopyRoom> copies{{{node('1'), {0, 4}}, 1280}, {{node('2'), {0, 4}}, 40 * 1280}};
  EXPECT_FALSE(find_room(kFour, copies, 1280));
  const auto no = find_room(kFour, copies, 1281 * 10);
  ASSERT_TRUE(no);
  EXPECT_EQ(no->node, node('2'));
}

TEST(SessionRoom, WithoutNewsOfANodeNothingIsRefused) {
  const std::vector<CopyRoom> copies{{{node('1'), {0, 4}}, kUnknownRoom}};
  EXPECT_FALSE(find_room(kFour, copies, 1 << 24));
}

TEST(SessionRoom, NoRoomAtAllFitsNothing) {
  const std::vector<CopyRoom> copies{{{node('1'), {0, 4}}, 0}};
  const auto no = find_room(kFour, copies, 1);
  ASSERT_TRUE(no);
  EXPECT_EQ(no->most_tokens, 0u);
}

TEST(SessionRoom, LayersWithoutAKvCacheNeedNone) {
  const CacheShape states{{0, 10, 0, 10}, {}};
  const std::vector<CopyRoom> copies{{{node('1'), {0, 1}}, 0}, {{node('2'), {1, 4}}, 2 * 1280}};
  EXPECT_FALSE(find_room(states, copies, 128));
  EXPECT_TRUE(find_room(states, copies, 129));
}

TEST(SessionRoom, WhatIsNoMatterOfMemoryIsNotRefused) {
  const std::vector<CopyRoom> copies{{{node('1'), {0, 2}}, 1280}, {{node('1'), {2, 4}}, 1280}};
  EXPECT_FALSE(find_room(kFour, copies, 1 << 20)) << "a route never takes two parts in a row at one node";
}

}  // namespace
}  // namespace mesh::tracker
