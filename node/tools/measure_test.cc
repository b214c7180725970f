#include "node/tools/measure.h"

#include <gtest/gtest.h>

#include "common/hub/checkpoint.h"
#include "node/engine/weights/synthetic_checkpoint.h"
#include "node/tools/rates.h"
#include "node/tools/session_group.h"
#include "node/tools/shapes.h"

namespace mesh::tools {
namespace {

using namespace engine;

/// A tiny model of made-up weights: 6 layers, 128 wide, vocabulary 2048.
class Measuring : public ::testing::Test {
 protected:
  std::shared_ptr<const Shard> load(const ShardSpec& spec) {
    auto shard = engine_->load(*checkpoint_, {}, spec, {});
    EXPECT_TRUE(shard.ok()) << shard.status();
    return *shard;
  }

  const std::string config_ =
      *shape_config(MESH_SOURCE_DIR "/tests/golden/checkpoints/tiny-llama/config.json");
  const ModelProfile profile_ = *read_model_profile(config_);
  const std::shared_ptr<hub::Checkpoint> checkpoint_ = *synthetic_checkpoint("tiny", config_, 1);
  const std::unique_ptr<Engine> engine_ = *Engine::create({.device = Device::kCpu,
                                                           .compute = ComputeType::kBfloat16,
                                                           .threads = 1,
                                                           .memory_bytes = std::uint64_t{1} << 28,
                                                           .cuda_library = {}});
};

TEST_F(Measuring, RunsWholeModelsChainsAndLayersAlone) {
  int rounds = 0;
  const Workload work{.sessions = 2, .context = 5, .decoded = 3, .prompt = 9, .chunk = 4, .rounds = 5};
  const auto whole = load(shard_of(profile_, {0, 6}));
  for (const std::vector<LayerRange>& ranges : {std::vector<LayerRange>{{0, 6}}, {{0, 2}, {2, 6}}}) {
    const auto measured = measure(*engine_, whole, ranges, work, [&] { ++rounds; });
    ASSERT_TRUE(measured.ok()) << measured.status();
    EXPECT_GT(measured->prefill_seconds, 0);
    EXPECT_GT(measured->decode_seconds, 0);
    EXPECT_DOUBLE_EQ(measured->mean_context, 6.5);
  }
  EXPECT_EQ(rounds, 10);
  const auto layers = load({{2, 4}, false, false});
  EXPECT_TRUE(measure(*engine_, layers, {{2, 4}}, work, {}).ok());
  EXPECT_EQ(engine_->memory().caches, 0u);
}

TEST_F(Measuring, SessionsStandWhereTheStepsLeftThem) {
  const auto shard = load(shard_of(profile_, {0, 6}));
  auto group = SessionGroup::open(*engine_, shard, {{0, 6}}, 3, 12);
  ASSERT_TRUE(group.ok()) << group.status();
  ASSERT_TRUE((*group)->prefill(10, 4).ok());
  EXPECT_EQ(engine_->memory().caches, 3u);
  EXPECT_TRUE((*group)->decode().ok());
  EXPECT_TRUE((*group)->decode().ok());
  EXPECT_FALSE((*group)->decode().ok());  // its 12 positions are full
  (*group)->back_to(10);
  EXPECT_TRUE((*group)->decode().ok());
}

TEST_F(Measuring, WhatDoesNotFitIsAnError) {
  const auto shard = load(shard_of(profile_, {0, 6}));
  const Workload huge{.sessions = 100'000, .context = 500, .decoded = 1};
  EXPECT_EQ(measure(*engine_, shard, {{0, 6}}, huge, {}).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_->memory().caches, 0u);
}

// By hand: a layer of tiny-llama has 128·(128 + 64 + 64 + 128 + 3·256) matrix values; lm_head 2048·128.
TEST_F(Measuring, CostsAreTheBytesAndProductsOfTheMatrices) {
  const Cost layers = cost_of(profile_, {1, 3}, false, ComputeType::kBfloat16, Quantization::kNone);
  const double values = 2 * 128.0 * (128 + 64 + 64 + 128 + 3 * 256);
  EXPECT_DOUBLE_EQ(layers.layer_values, values);
  EXPECT_DOUBLE_EQ(layers.weight_bytes, 2 * values);
  EXPECT_DOUBLE_EQ(layers.kv_bytes, 2 * 2.0 * (64 + 64));  // two layers of keys and values in two bytes
  const Cost tail = cost_of(profile_, {1, 3}, true, ComputeType::kBfloat16, Quantization::kNone);
  EXPECT_DOUBLE_EQ(tail.weight_bytes, 2 * values + 2 * 2048.0 * 128);
  const Workload work{.sessions = 4, .prompt = 100};
  EXPECT_DOUBLE_EQ(tail.decode_bytes(work, 50), tail.weight_bytes + 4 * 50 * 512.0);
  EXPECT_DOUBLE_EQ(tail.prefill_flops(work), 2 * values * 100);
}

TEST(Rates, AreTheBestOfTheirPasses) {
  const auto read = ReadRate::create(2, std::size_t{1} << 22);
  const auto products = ProductRate::create(1);
  ASSERT_TRUE(read.ok() && products.ok());
  EXPECT_EQ((*read)->bytes_per_second(), 0);
  double last = 0;
  for (int pass = 0; pass < 3; ++pass) {
    (*read)->pass();
    EXPECT_GE((*read)->bytes_per_second(), last);
    last = (*read)->bytes_per_second();
  }
  (*products)->pass();
  EXPECT_GT(last, 1e6);
  EXPECT_GT((*products)->flops(), 1e6);
}

TEST(Median, IsTheMiddleOfTheSortedList) {
  EXPECT_EQ(median({5, 1, 9}), 5);
  EXPECT_EQ(median({2, 1, 4, 3}), 3);
}

}  // namespace
}  // namespace mesh::tools
