#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "tracker/plan/plan.h"

// Random meshes with nodes that come and go. After each change the plan is made and carried out step by step.
namespace mesh::tracker {
namespace {

struct World {
  std::vector<ModelProfile> models;
  HeadLayers head;
  std::vector<PlanNode> nodes;
  PlanOptions options;
};

ModelProfile random_model(std::mt19937_64& random, std::uint8_t number) {
  ModelProfile profile;
  profile.identity.bytes[0] = number;
  profile.name = fmt::format("model-{}", number);
  profile.model_type = "llama";
  profile.quantization = "bfloat16";
  profile.compute_type = "bfloat16";
  profile.hidden_size = 4;
  const std::uint32_t layers = 2 + random() % 20;
  for (std::uint32_t i = 0; i < layers; ++i) {
    profile.layer_bytes.push_back(80 + random() % 40);
    profile.layer_bytes_per_token.push_back(random() % 2);
  }
  profile.head_bytes = random() % 200;
  profile.tail_bytes = random() % 200;
  return profile;
}

PlanNode random_node(std::mt19937_64& random, std::uint8_t number) {
  PlanNode node;
  node.id.bytes[0] = number;
  node.memory_bytes = 200 + random() % 2000;
  node.model_types = {"llama"};
  node.quantizations = {"bfloat16"};
  node.compute_types = {"bfloat16"};
  return node;
}

std::vector<std::uint32_t> ready_counts(const World& world, const ModelProfile& model) {
  std::vector<std::uint32_t> counts(model.layers(), 0);
  for (std::uint32_t layer = 0; layer < world.head.at(model.identity); ++layer) ++counts[layer];
  for (const PlanNode& node : world.nodes) {
    for (const Holding& holding : node.holdings) {
      if (holding.model != model.identity || !holding.ready) continue;
      for (auto layer = holding.layers.begin; layer < holding.layers.end; ++layer) ++counts[layer];
    }
  }
  return counts;
}

std::uint64_t memory_of(const World& world, const PlanNode& node) {
  std::uint64_t sum = world.options.budget.reserve_bytes;
  for (const ModelProfile& model : world.models) {
    std::vector<bool> held(model.layers(), false);
    for (const Holding& holding : node.holdings) {
      if (holding.model != model.identity) continue;
      std::fill(held.begin() + holding.layers.begin, held.begin() + holding.layers.end, true);
    }
    for (std::uint32_t layer = 0; layer < model.layers(); ++layer) {
      if (held[layer])
        sum += shard_bytes(model, {layer, layer + 1}, world.options.budget) -
               (layer > 0 && held[layer - 1] ? 2ull * model.hidden_size * world.options.budget.session_tokens
                                             : 0);
    }
  }
  return sum;
}

void carry_out(World& world, const Step& step) {
  auto& node = *std::find_if(world.nodes.begin(), world.nodes.end(),
                             [&](const PlanNode& each) { return each.id == step.node; });
  if (step.kind == StepKind::kLoad) {
    node.holdings.push_back({step.model, step.layers, true});
    EXPECT_LE(memory_of(world, node), node.memory_bytes);
    return;
  }
  for (const ModelProfile& model : world.models) {
    if (model.identity != step.model) continue;
    const auto before = ready_counts(world, model);
    std::erase_if(node.holdings,
                  [&](const Holding& h) { return h.model == step.model && h.layers == step.layers; });
    const auto after = ready_counts(world, model);
    for (std::uint32_t layer = 0; layer < model.layers(); ++layer) {
      EXPECT_FALSE(before[layer] > 0 && after[layer] == 0)
          << "last ready copy of layer " << layer << " dropped";
    }
  }
}

std::string describe(const Plan& plan) {
  std::string text;
  for (const Step& step : plan.steps) {
    text += fmt::format("{} node {} model {} {}\n", step.kind == StepKind::kLoad ? "load" : "drop",
                        step.node.bytes[0], step.model.bytes[0], to_string(step.layers));
  }
  for (const std::string& note : plan.notes) text += note + "\n";
  return text;
}

class PlanProperty : public testing::TestWithParam<int> {};

TEST_P(PlanProperty, ChurnKeepsEveryInvariant) {
  std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()));
  World world;
  world.options.budget = {.session_tokens = random() % 8, .reserve_bytes = random() % 50};
  const int models = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < models; ++i) {
    world.models.push_back(random_model(random, static_cast<std::uint8_t>(i + 1)));
    world.head[world.models.back().identity] =
        static_cast<std::uint32_t>(random() % world.models.back().layers());
  }
  std::uint8_t next = 1;
  for (int event = 0; event < 24; ++event) {
    if (!world.nodes.empty() && random() % 4 == 0) {
      world.nodes.erase(world.nodes.begin() + static_cast<std::ptrdiff_t>(random() % world.nodes.size()));
    } else {
      world.nodes.push_back(random_node(random, next++));
    }
    const Plan plan = make_plan(world.models, world.head, world.nodes, {1}, world.options);
    const Plan again = make_plan(world.models, world.head, world.nodes, {1}, world.options);
    EXPECT_EQ(plan.target, again.target);
    EXPECT_EQ(plan.steps, again.steps);

    for (const Step& step : plan.steps) carry_out(world, step);
    for (const Assignment& item : plan.target) {
      const auto node = std::find_if(world.nodes.begin(), world.nodes.end(),
                                     [&](const PlanNode& each) { return each.id == item.node; });
      ASSERT_NE(node, world.nodes.end());
      EXPECT_TRUE(std::any_of(node->holdings.begin(), node->holdings.end(),
                              [&](const Holding& holding) {
                                return holding.model == item.model && holding.layers.contains(item.layers);
                              }))
          << to_string(item.layers) << describe(plan);
    }
    for (const ModelProfile& model : world.models) {
      const auto counts = ready_counts(world, model);
      for (std::uint32_t layer = 0; layer < model.layers(); ++layer) {
        const bool gap = std::any_of(plan.gaps.begin(), plan.gaps.end(), [&](const Gap& each) {
          return each.model == model.identity && each.layers.contains(layer);
        });
        EXPECT_EQ(gap, counts[layer] == 0) << model.name << " layer " << layer;
      }
    }
    // It comes to rest: nothing moves for long while nothing changes.
    Plan rest;
    for (int round = 0; round < 4; ++round) {
      rest = make_plan(world.models, world.head, world.nodes, {2}, world.options);
      for (const Step& step : rest.steps) carry_out(world, step);
    }
    EXPECT_TRUE(rest.steps.empty()) << describe(rest);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PlanProperty, testing::Range(0, 120));

TEST(PlanScale, FiveHundredNodesArePlannedInTime) {
  std::mt19937_64 random(11);
  ModelProfile profile = random_model(random, 1);
  profile.layer_bytes.assign(80, 100);
  profile.layer_bytes_per_token.assign(80, 0);
  std::vector<PlanNode> nodes;
  for (int i = 0; i < 500; ++i) {
    nodes.push_back(random_node(random, 0));
    nodes.back().id.bytes[1] = static_cast<std::uint8_t>(i / 256);
    nodes.back().id.bytes[2] = static_cast<std::uint8_t>(i % 256);
  }
  PlanOptions options;
  options.budget = {.session_tokens = 0, .reserve_bytes = 0};
  const auto began = std::chrono::steady_clock::now();
  const Plan plan = make_plan({profile}, {}, nodes, {1}, options);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  EXPECT_TRUE(plan.gaps.empty());
  EXPECT_GT(plan.target.size(), 400u);
  EXPECT_LT(took.count(), 5.0);
  RecordProperty("seconds", std::to_string(took.count()));
}

TEST(PlanCoverage, EqualLayersAreCoveredExactlyWhenMemoryHoldsThemAll) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    ModelProfile profile;
    profile.model_type = profile.quantization = profile.compute_type = "x";
    profile.layer_bytes.assign(1 + random() % 40, 100);
    profile.layer_bytes_per_token.assign(profile.layers(), 0);
    std::vector<PlanNode> nodes;
    std::uint64_t room = 0;
    for (std::uint8_t i = 0; i < 1 + random() % 8; ++i) {
      PlanNode node;
      node.id.bytes[0] = i;
      const std::uint64_t layers = random() % 8;
      room += layers;
      node.memory_bytes = 100 * layers + 100;
      node.model_types = node.quantizations = node.compute_types = {"x"};
      nodes.push_back(node);
    }
    PlanOptions options;
    options.budget = {.session_tokens = 0, .reserve_bytes = 0};
    const Plan plan = make_plan({profile}, {}, nodes, {1}, options);
    EXPECT_EQ(plan.gaps.empty(), room >= profile.layers()) << "round " << round;
  }
}

}  // namespace
}  // namespace mesh::tracker
