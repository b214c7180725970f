#include "tracker/route/route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace mesh::tracker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

NodeId node(std::uint8_t number) {
  NodeId id;
  id.bytes[0] = number;
  return id;
}

RouteRequest over(LayerRange layers) {
  RouteRequest request;
  request.layers = layers;
  return request;
}

TEST(Route, ChainsCopiesFromEndToEnd) {
  const auto route = pick_route({{node(2), {4, 8}}, {node(1), {0, 4}}}, {}, over({0, 8}));
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_THAT(*route, ElementsAre(RouteHop{node(1), {0, 4}}, RouteHop{node(2), {4, 8}}));
}

TEST(Route, AsksOnlyForTheLayersBehindTheHead) {
  const auto route = pick_route({{node(1), {0, 8}}}, {}, over({3, 8}));
  ASSERT_TRUE(route.ok());
  EXPECT_THAT(*route, ElementsAre(RouteHop{node(1), {3, 8}}));
}

TEST(Route, NothingToCoverIsAnEmptyRoute) {
  const auto route = pick_route({}, {}, over({8, 8}));
  ASSERT_TRUE(route.ok());
  EXPECT_THAT(*route, IsEmpty());
}

TEST(Route, PrefersFewerHops) {
  const std::vector<Copy> ready = {{node(1), {0, 4}}, {node(2), {4, 8}}, {node(3), {0, 8}}};
  const auto route = pick_route(ready, {}, over({0, 8}));
  ASSERT_TRUE(route.ok());
  EXPECT_THAT(*route, ElementsAre(RouteHop{node(3), {0, 8}}));
}

TEST(Route, PrefersTwoFastNodesToOneSlow) {
  const std::vector<Copy> ready = {{node(1), {0, 4}}, {node(2), {4, 8}}, {node(3), {0, 8}}};
  const LoadView load = {{node(3), {0.1, 0.002, 0}}};
  const auto route = pick_route(ready, load, over({0, 8}));
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->size(), 2u);
}

TEST(Route, OverlappingCopiesAreCutToNarrowerRanges) {
  const auto route = pick_route({{node(1), {0, 6}}, {node(2), {3, 8}}}, {}, over({0, 8}));
  ASSERT_TRUE(route.ok());
  ASSERT_EQ(route->size(), 2u);
  EXPECT_EQ((*route)[0].layers.begin, 0u);
  EXPECT_EQ((*route)[0].layers.end, (*route)[1].layers.begin);
  EXPECT_EQ((*route)[1].layers.end, 8u);
}

TEST(Route, ExcludedNodesAreNotUsedAndTheHoleIsNamed) {
  RouteRequest request = over({0, 8});
  request.excluded = {node(2)};
  const auto route = pick_route({{node(1), {0, 4}}, {node(2), {4, 8}}}, {}, request);
  ASSERT_EQ(route.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(message_of(route.status())), HasSubstr("[4, 8)"));
}

TEST(Route, BusyNodesAreAvoided) {
  const LoadView load = {{node(1), {0.002, 0.002, 5}}};
  const auto route = pick_route({{node(1), {0, 4}}, {node(2), {0, 4}}}, load, over({0, 4}));
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->front().node, node(2));
}

TEST(Route, EqualNodesShareTheSessionsAndASeedRepeatsItsChoice) {
  const std::vector<Copy> ready = {{node(1), {0, 4}}, {node(2), {0, 4}}};
  int first = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    RouteRequest request = over({0, 4});
    request.seed = seed;
    const auto one = pick_route(ready, {}, request);
    const auto two = pick_route(ready, {}, request);
    ASSERT_TRUE(one.ok() && two.ok());
    EXPECT_EQ(*one, *two);
    first += one->front().node == node(1);
  }
  EXPECT_GT(first, 60);
  EXPECT_LT(first, 140);
}

TEST(Route, KeepsToAllowedBorders) {
  RouteRequest request = over({0, 8});
  request.borders = {4};
  const std::vector<Copy> ready = {{node(1), {0, 5}}, {node(2), {3, 8}}};
  const auto route = pick_route(ready, {}, request);
  EXPECT_EQ(route.status().code(), StatusCode::kUnavailable);
  request.borders = {3, 4};
  const auto other = pick_route(ready, {}, request);
  ASSERT_TRUE(other.ok());
  EXPECT_THAT(*other, ElementsAre(RouteHop{node(1), {0, 3}}, RouteHop{node(2), {3, 8}}));
}

TEST(RouteProperty, EveryRouteCoversExactlyByReadyCopiesAndIsFoundWhenItExists) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 500; ++round) {
    const std::uint32_t layers = 4 + random() % 20;
    std::vector<Copy> ready;
    const int nodes = 1 + static_cast<int>(random() % 8);
    std::vector<std::uint32_t> counts(layers, 0);
    for (int i = 0; i < nodes; ++i) {
      const std::uint32_t begin = random() % layers;
      const std::uint32_t end = begin + 1 + random() % (layers - begin);
      ready.push_back({node(static_cast<std::uint8_t>(i)), {begin, end}});
      for (auto layer = begin; layer < end; ++layer) ++counts[layer];
    }
    RouteRequest request = over({0, layers});
    request.seed = random();
    const auto route = pick_route(ready, {}, request);
    // One contiguous copy per node: whatever covers every layer chains without a node used twice.
    ASSERT_EQ(route.ok(), runs_of_zero(counts).empty()) << route.status();
    if (!route.ok()) continue;
    std::uint32_t at = 0;
    std::set<NodeId> used;
    for (const RouteHop& hop : *route) {
      EXPECT_EQ(hop.layers.begin, at);
      EXPECT_FALSE(hop.layers.empty());
      EXPECT_TRUE(used.insert(hop.node).second);
      EXPECT_TRUE(std::any_of(ready.begin(), ready.end(), [&](const Copy& copy) {
        return copy.node == hop.node && copy.layers.contains(hop.layers);
      }));
      at = hop.layers.end;
    }
    EXPECT_EQ(at, layers);
  }
}

}  // namespace
}  // namespace mesh::tracker
