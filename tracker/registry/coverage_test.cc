#include "tracker/registry/coverage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mesh::tracker {
namespace {

using testing::ElementsAre;

NodeId node(std::uint8_t number) {
  NodeId id;
  id.bytes[0] = number;
  return id;
}

TEST(Coverage, CountsReadyAndLoadingCopiesApart) {
  Coverage coverage(5);
  coverage.add_ready({node(1), {0, 3}});
  coverage.add_ready({node(2), {2, 4}});
  coverage.add_loading({node(3), {3, 5}});
  EXPECT_THAT(coverage.ready_counts(), ElementsAre(1, 1, 2, 1, 0));
  EXPECT_THAT(coverage.loading_counts(), ElementsAre(0, 0, 0, 1, 1));
}

TEST(Coverage, NamesEveryMaximalGap) {
  Coverage coverage(8);
  coverage.add_ready({node(1), {1, 3}});
  coverage.add_ready({node(2), {5, 6}});
  EXPECT_THAT(coverage.gaps(), ElementsAre(LayerRange{0, 1}, LayerRange{3, 5}, LayerRange{6, 8}));
  EXPECT_FALSE(coverage.complete());
}

TEST(Coverage, LoadingAndHeldCopiesDoNotCover) {
  Coverage coverage(2);
  coverage.add_loading({node(1), {0, 2}});
  coverage.add_held({node(2), {0, 2}});
  EXPECT_THAT(coverage.gaps(), ElementsAre(LayerRange{0, 2}));
}

TEST(Coverage, ANodeWithSeveralShardsCountsOnce) {
  Coverage coverage(6);
  coverage.add_loading({node(1), {0, 4}});
  coverage.add_loading({node(1), {2, 6}});
  coverage.add_loading({node(2), {3, 6}});
  EXPECT_THAT(coverage.loading_counts(), ElementsAre(1, 1, 1, 2, 2, 2));
  coverage.add_ready({node(3), {0, 2}});
  coverage.add_ready({node(3), {0, 3}});
  EXPECT_THAT(coverage.ready_counts(), ElementsAre(1, 1, 1, 0, 0, 0));
}

TEST(Coverage, WhatANodeHasReadyIsNotLoadingThere) {
  Coverage coverage(6);
  coverage.add_ready({node(1), {4, 6}});
  coverage.add_loading({node(1), {2, 6}});
  coverage.add_loading({node(2), {4, 6}});
  EXPECT_THAT(coverage.loading_counts(), ElementsAre(0, 0, 1, 1, 1, 1));
}

TEST(Coverage, RangesBeyondTheModelAreCutOff) {
  Coverage coverage(2);
  coverage.add_ready({node(1), {1, 4'000'000'000u}});
  EXPECT_THAT(coverage.ready_counts(), ElementsAre(0, 1));
}

}  // namespace
}  // namespace mesh::tracker
