#include "tracker/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mesh::tracker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

NodeId node_id(std::uint8_t number) {
  NodeId id;
  id.bytes[0] = number;
  return id;
}
ModelIdentity model_id(std::uint8_t number) {
  ModelIdentity id;
  id.bytes[0] = number;
  return id;
}

/// Layers of 100 bytes; no KV, no kept outputs, so that a node of 100·n + 100 bytes holds n layers (one more
/// loads).
ModelProfile model(std::uint8_t number, std::uint32_t layers) {
  ModelProfile profile;
  profile.identity = model_id(number);
  profile.name = fmt::format("model-{}", number);
  profile.model_type = "llama";
  profile.quantization = "bfloat16";
  profile.compute_type = "bfloat16";
  profile.layer_bytes.assign(layers, 100);
  profile.layer_bytes_per_token.assign(layers, 0);
  return profile;
}

PlanNode holder(std::uint8_t number, std::uint32_t capacity, std::vector<Holding> holdings = {}) {
  PlanNode node;
  node.id = node_id(number);
  node.memory_bytes = 100ull * capacity + 100;
  node.model_types = {"llama"};
  node.quantizations = {"bfloat16"};
  node.compute_types = {"bfloat16"};
  node.holdings = std::move(holdings);
  return node;
}

Holding ready(std::uint8_t number, LayerRange layers) {
  return {model_id(number), layers, true};
}

PlanOptions bare() {
  PlanOptions options;
  options.budget = {.session_tokens = 0, .reserve_bytes = 0};
  return options;
}

Plan plan(const std::vector<ModelProfile>& models, const std::vector<PlanNode>& nodes,
          const HeadLayers& head = {}, PlanOptions options = bare()) {
  return make_plan(models, head, nodes, {1}, options);
}

Assignment at(std::uint8_t node, std::uint8_t model, LayerRange layers) {
  return {node_id(node), model_id(model), layers};
}

TEST(Plan, OneNodeTakesAllThatTheHeadDoesNot) {
  const Plan result = plan({model(1, 10)}, {holder(1, 20)}, {{model_id(1), 4}});
  EXPECT_THAT(result.target, ElementsAre(at(1, 1, {4, 10})));
  EXPECT_THAT(result.steps, ElementsAre(Step{StepKind::kLoad, node_id(1), model_id(1), {4, 10}}));
  EXPECT_THAT(result.gaps, IsEmpty());
}

TEST(Plan, NodesOfLimitedMemoryShareTheLayersInARow) {
  const Plan result = plan({model(1, 10)}, {holder(1, 3), holder(2, 3)}, {{model_id(1), 4}});
  EXPECT_THAT(result.target, ElementsAre(at(1, 1, {4, 7}), at(2, 1, {7, 10})));
}

TEST(Plan, GapsThatNobodyCanFillAreNamedWithFigures) {
  const Plan result = plan({model(1, 10)}, {holder(1, 6)});
  ASSERT_THAT(result.gaps, SizeIs(1));
  EXPECT_EQ(result.gaps[0].layers, (LayerRange{6, 10}));
  EXPECT_THAT(result.gaps[0].reason, HasSubstr("400 bytes"));
}

TEST(Plan, EveryModelIsCoveredBeforeAnySecondCopy) {
  const Plan result = plan({model(1, 4), model(2, 4)}, {holder(1, 4), holder(2, 4)});
  EXPECT_THAT(result.target, ElementsAre(at(1, 1, {0, 4}), at(2, 2, {0, 4})));
}

TEST(Plan, SpareMemoryBecomesCopiesOfTheWeakestLayers) {
  const Plan result = plan({model(1, 6)}, {holder(1, 6), holder(2, 3), holder(3, 3)});
  EXPECT_THAT(result.target, ElementsAre(at(1, 1, {0, 6}), at(2, 1, {0, 3}), at(3, 1, {3, 6})));
}

TEST(Plan, CopiesAreLimitedWhenAsked) {
  PlanOptions options = bare();
  options.max_copies = 1;
  const Plan result = plan({model(1, 6)}, {holder(1, 6), holder(2, 6)}, {}, options);
  EXPECT_THAT(result.target, ElementsAre(at(1, 1, {0, 6})));
}

TEST(Plan, LayersOfOneNodeAreLimitedWhenAsked) {
  PlanOptions options = bare();
  options.max_node_layers = 3;
  const Plan result = plan({model(1, 6)}, {holder(1, 9), holder(2, 9)}, {}, options);
  EXPECT_THAT(result.target, ElementsAre(at(1, 1, {0, 3}), at(2, 1, {3, 6})));
}

TEST(Plan, NoCopiesWhileAGapIsOpen) {
  const Plan result = plan({model(1, 2), model(2, 9)}, {holder(1, 2), holder(2, 5)});
  EXPECT_THAT(result.target, ElementsAre(at(1, 1, {0, 2}), at(2, 2, {0, 5})));
}

TEST(Plan, ADeadNodesLayersAloneMove) {
  const Plan result =
      plan({model(1, 9)}, {holder(1, 3, {ready(1, {0, 3})}), holder(3, 3, {ready(1, {6, 9})}), holder(4, 3)});
  EXPECT_THAT(result.target, ElementsAre(at(1, 1, {0, 3}), at(3, 1, {6, 9}), at(4, 1, {3, 6})));
  EXPECT_THAT(result.steps, ElementsAre(Step{StepKind::kLoad, node_id(4), model_id(1), {3, 6}}));
}

TEST(Plan, NeighboursGrowIntoAGap) {
  const Plan result =
      plan({model(1, 8)}, {holder(1, 4, {ready(1, {0, 3})}), holder(2, 4, {ready(1, {5, 8})})});
  EXPECT_THAT(result.target, ElementsAre(at(1, 1, {0, 4}), at(2, 1, {4, 8})));
  EXPECT_THAT(result.steps, ElementsAre(Step{StepKind::kLoad, node_id(1), model_id(1), {0, 4}},
                                        Step{StepKind::kLoad, node_id(2), model_id(1), {4, 8}},
                                        Step{StepKind::kDrop, node_id(1), model_id(1), {0, 3}},
                                        Step{StepKind::kDrop, node_id(2), model_id(1), {5, 8}}));
}

TEST(Plan, ASecondCopyGivesWayToAGap) {
  const Plan result =
      plan({model(1, 6)}, {holder(1, 4, {ready(1, {0, 4})}), holder(2, 2, {ready(1, {0, 2})})});
  EXPECT_THAT(result.target, ElementsAre(at(1, 1, {0, 4}), at(2, 1, {4, 6})));
  EXPECT_THAT(result.steps, ElementsAre(Step{StepKind::kDrop, node_id(2), model_id(1), {0, 2}},
                                        Step{StepKind::kLoad, node_id(2), model_id(1), {4, 6}}));
}

TEST(Plan, TheLastReadyCopyIsNotDroppedToMakeRoom) {
  // The only whole chain would have node 2 give up [4, 6), of which it has the only copy, before it can load
  // [3, 5).
  const Plan result =
      plan({model(1, 6)}, {holder(1, 3, {ready(1, {0, 3})}), holder(2, 2, {ready(1, {4, 6})}), holder(3, 1)});
  for (const Step& step : result.steps) EXPECT_EQ(step.kind, StepKind::kLoad);
}

TEST(Plan, HoldersShiftAlongTheChainWhenOnlyThatClosesAGap) {
  // [4, 5) is lost; node 1 and node 2 are full, node 3 at the end has room.
  const std::vector<PlanNode> nodes = {holder(1, 4, {ready(1, {0, 4})}), holder(2, 4, {ready(1, {5, 8})}),
                                       holder(3, 5, {ready(1, {8, 12})})};
  const Plan result = plan({model(1, 12)}, nodes);
  EXPECT_THAT(result.gaps, IsEmpty());
  EXPECT_EQ(result.target[0], at(1, 1, {0, 4}));
}

TEST(Plan, WhatNodesHoldAndStillFitsStays) {
  const std::vector<Holding> held = {ready(1, {2, 5})};
  const Plan result = plan({model(1, 6)}, {holder(1, 6), holder(2, 3, held)});
  EXPECT_THAT(result.target, testing::Contains(at(2, 1, {2, 5})));
}

TEST(Plan, LeavingNodesLayersAreCoveredElsewhereAndItIsOrderedNothing) {
  PlanNode leaving = holder(1, 6, {ready(1, {0, 6})});
  leaving.leaving = true;
  const Plan result = plan({model(1, 6)}, {leaving, holder(2, 6)});
  EXPECT_THAT(result.target, ElementsAre(at(2, 1, {0, 6})));
  EXPECT_THAT(result.steps, ElementsAre(Step{StepKind::kLoad, node_id(2), model_id(1), {0, 6}}));
}

TEST(Plan, ASilentNodesCopiesAreNotMadeAgainButItsGapsAreFilled) {
  PlanNode silent = holder(3, 4, {ready(1, {0, 4})});
  silent.silent = true;
  PlanOptions options = bare();
  options.max_copies = 2;
  const Plan covered =
      plan({model(1, 4)}, {holder(1, 4, {ready(1, {0, 4})}), holder(2, 4), silent}, {}, options);
  EXPECT_THAT(covered.target, ElementsAre(at(1, 1, {0, 4})));
  const Plan alone = plan({model(1, 4)}, {holder(2, 4), silent}, {}, options);
  EXPECT_THAT(alone.target, ElementsAre(at(2, 1, {0, 4})));
}

TEST(Plan, ASilentNodeWithTwoShardsIsOneCopy) {
  PlanNode silent = holder(3, 4, {ready(1, {2, 4}), {model_id(1), {0, 4}, false}});
  silent.silent = true;
  PlanOptions options = bare();
  options.max_copies = 3;
  const Plan result =
      plan({model(1, 4)}, {holder(1, 4, {ready(1, {0, 4})}), holder(2, 4), silent}, {}, options);
  EXPECT_THAT(result.target, ElementsAre(at(1, 1, {0, 4}), at(2, 1, {0, 4})));
}

TEST(Plan, NodesGetOnlyWhatTheyAcceptAndDidNotFailToLoad) {
  PlanNode other_family = holder(1, 9);
  other_family.model_types = {"gpt2"};
  PlanNode other_quantization = holder(2, 9);
  other_quantization.quantizations = {"nf4"};
  PlanNode failed = holder(3, 9);
  failed.refuses = {model_id(1)};
  const Plan result = plan({model(1, 4)}, {other_family, other_quantization, failed});
  EXPECT_THAT(result.target, IsEmpty());
  ASSERT_THAT(result.gaps, SizeIs(1));
  EXPECT_THAT(result.gaps[0].reason, HasSubstr("no node may load"));
  EXPECT_THAT(result.gaps[0].reason, HasSubstr("--quantization"));
}

TEST(Plan, EmbeddingAndHeadCountAtTheEnds) {
  ModelProfile heavy = model(1, 6);
  heavy.head_bytes = 200;
  heavy.tail_bytes = 100;
  const Plan result = plan({heavy}, {holder(1, 5), holder(2, 4)});
  EXPECT_THAT(result.target, ElementsAre(at(1, 1, {0, 3}), at(2, 1, {3, 6})));
}

TEST(Plan, KvCacheAndKeptOutputsCountPerShard) {
  ModelProfile profile = model(1, 4);
  profile.hidden_size = 1;
  profile.layer_bytes_per_token.assign(4, 10);
  PlanOptions options = bare();
  options.budget.session_tokens = 10;
  // A layer takes 100 + 10·10 bytes, a shard 2·1·10 for outputs, loading 100: two layers need 520.
  PlanNode small = holder(1, 0);
  small.memory_bytes = 519;
  EXPECT_EQ(plan({profile}, {small}, {}, options).target[0].layers, (LayerRange{0, 1}));
  small.memory_bytes = 520;
  EXPECT_EQ(plan({profile}, {small}, {}, options).target[0].layers, (LayerRange{0, 2}));
}

TEST(Plan, BordersAreOnlyWhereTheModelAllowsThem) {
  ModelProfile profile = model(1, 8);
  profile.split_points = {3, 6};
  const Plan result = plan({profile}, {holder(1, 4), holder(2, 5)});
  for (const Assignment& item : result.target) {
    EXPECT_TRUE(profile.may_split_at(item.layers.begin) && profile.may_split_at(item.layers.end));
  }
  EXPECT_THAT(result.gaps, IsEmpty());
}

TEST(Plan, UnwantedModelsAreDropped) {
  const Plan result = plan({model(1, 2)}, {holder(1, 2, {ready(9, {0, 5}), ready(1, {0, 2})})});
  EXPECT_THAT(result.steps, ElementsAre(Step{StepKind::kDrop, node_id(1), model_id(9), {0, 5}}));
}

TEST(StepsNow, AGrowingShardsSeedStaysUntilTheNewOneIsReady) {
  const std::vector<Assignment> target = {at(1, 1, {0, 4})};
  std::vector<PlanNode> nodes = {holder(1, 4, {ready(1, {0, 2}), {model_id(1), {0, 4}, false}})};
  EXPECT_THAT(steps_now({model(1, 4)}, {}, nodes, target, bare()), IsEmpty());
  nodes[0].holdings[1].ready = true;
  EXPECT_THAT(steps_now({model(1, 4)}, {}, nodes, target, bare()),
              ElementsAre(Step{StepKind::kDrop, node_id(1), model_id(1), {0, 2}}));
}

TEST(StepsNow, TwoCopiesAreNotDroppedTogetherWhenNoneStays) {
  const std::vector<PlanNode> nodes = {holder(1, 4, {ready(1, {0, 2})}), holder(2, 4, {ready(1, {0, 2})})};
  EXPECT_THAT(steps_now({model(1, 2)}, {}, nodes, {}, bare()), IsEmpty());
}

TEST(AutoHeadLayers, AsManyAsFitAndPossiblyNone) {
  const MemoryBudget none{.session_tokens = 0, .reserve_bytes = 0};
  EXPECT_EQ(auto_head_layers(model(1, 10), 10'000, none), 10u);
  EXPECT_EQ(auto_head_layers(model(1, 10), 550, none), 4u);
  EXPECT_EQ(auto_head_layers(model(1, 10), 100, none), 0u);
}

}  // namespace
}  // namespace mesh::tracker
