#include "node/engine/weights/synthetic_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "node/engine/testing/golden.h"

namespace mesh::engine::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kQuery = "model.layers.0.self_attn.q_proj.weight";

std::string config_of(const std::string& name) {
  std::ifstream file(golden_folder(name) + "/config.json");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::shared_ptr<hub::Checkpoint> synthetic(const std::string& name, std::uint64_t seed = 1) {
  return *synthetic_checkpoint(name, config_of(name), seed);
}

std::vector<float> values(std::string_view bytes) {
  std::vector<float> list(bytes.size() / 2);
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    list[i] = std::bit_cast<float>(std::uint32_t{bits} << 16);
  }
  return list;
}

TEST(SyntheticCheckpoint, HasTheTensorsOfTheModelOnDisk) {
  for (const char* name : {"tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-gpt2"}) {
    const auto made = synthetic(name);
    const auto original = open_checkpoint(golden_folder(name));
    for (const auto& [tensor, file] : original->tensor_files()) {
      ASSERT_TRUE(made->has(tensor)) << name << " " << tensor;
      EXPECT_EQ(made->info(tensor)->shape, original->info(tensor)->shape) << name << " " << tensor;
    }
    EXPECT_EQ(made->tensor_files().size(), original->tensor_files().size()) << name;
  }
}

// By the header's formula, computed apart from this code: SplitMix64 over seed and name.
TEST(SyntheticCheckpoint, ValuesAreAFunctionOfSeedNameAndPlace) {
  const auto checkpoint = synthetic("tiny-llama");
  const std::string_view bytes = *checkpoint->slice(kQuery, 0, 12);
  std::vector<int> sums;
  for (const float value : values(bytes)) sums.push_back(static_cast<int>(std::lround(value * 12800)));
  EXPECT_THAT(sums, ElementsAre(-191, 159, 538, -131, -295, -23));
}

TEST(SyntheticCheckpoint, SlicesArePiecesOfTheWhole) {
  const auto checkpoint = synthetic("tiny-llama");
  const std::string whole(*checkpoint->tensor(kQuery));
  for (const auto& [begin, length] :
       {std::pair<std::uint64_t, std::uint64_t>{0, 2}, {1, 1}, {3, 500}, {254, 1000}, {30000, 7}}) {
    const std::string_view slice = *checkpoint->slice(kQuery, begin, length);
    EXPECT_EQ(slice, whole.substr(begin, length)) << begin;
    checkpoint->release(slice);
  }
  EXPECT_EQ(checkpoint->slice(kQuery, whole.size() - 1, 2).status().code(), StatusCode::kOutOfRange);
  EXPECT_NE(whole, *synthetic("tiny-llama", 2)->tensor(kQuery));
  EXPECT_NE(whole, *checkpoint->tensor("model.layers.1.self_attn.q_proj.weight"));
}

TEST(SyntheticCheckpoint, MatricesHaveTheDeviationOfRealOnesAndNoZero) {
  const auto checkpoint = synthetic("tiny-llama");
  double sum = 0, squares = 0;
  const std::vector<float> matrix = values(*checkpoint->tensor("model.embed_tokens.weight"));
  for (const float value : matrix) {
    ASSERT_NE(value, 0.0f);
    sum += value;
    squares += value * value;
  }
  const auto count = static_cast<double>(matrix.size());
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 2e-4);
  EXPECT_NEAR(sum / count, 0, 2e-4);
  for (const float value : values(*checkpoint->tensor("model.norm.weight"))) EXPECT_NEAR(value, 1, 0.07);
}

std::vector<float> logits(hub::Checkpoint& checkpoint, Quantization quantization) {
  const auto engine = cpu_engine(ComputeType::kBfloat16);
  const ModelProfile profile = *read_model_profile(*checkpoint.files().read_small("config.json"));
  const ShardSpec spec = shard_of(profile, {0, profile.layer_count()}, quantization);
  auto shard = engine->load(checkpoint, {}, spec, {});
  EXPECT_TRUE(shard.ok()) << shard.status();
  Chain chain(*engine, *shard, {}, HiddenType::kFloat32, 16);
  return chain.logits(std::vector<TokenId>{3, 700, 1999});
}

TEST(SyntheticCheckpoint, LoadsInEveryQuantizationAsTheSameModel) {
  const auto checkpoint = synthetic("tiny-qwen3");
  const std::vector<float> plain = logits(*checkpoint, Quantization::kNone);
  const double int8 = nmse(logits(*checkpoint, Quantization::kInt8), plain);
  const double nf4 = nmse(logits(*checkpoint, Quantization::kNf4), plain);
  EXPECT_GT(int8, 0);
  EXPECT_LT(int8, 0.01);
  EXPECT_GT(nf4, int8);
  EXPECT_LT(nf4, 0.1);
}

TEST(SyntheticCheckpoint, RefusesConfigsThatStateQuantisedWeights) {
  std::string config = config_of("tiny-llama");
  config.insert(config.find('{') + 1,
                R"("quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": true},)");
  const auto refused = synthetic_checkpoint("x", config, 1);
  EXPECT_THAT(std::string(message_of(refused.status())), HasSubstr("quantization_config"));
}

TEST(SyntheticCheckpoint, SaysWhatATensorIsMadeOfAndRealOnesDoNot) {
  const auto one = synthetic("tiny-llama", 1), same = synthetic("tiny-llama", 1),
             two = synthetic("tiny-llama", 2);
  ASSERT_TRUE(one->made_of(kQuery).has_value());
  EXPECT_EQ(one->made_of(kQuery), same->made_of(kQuery));
  EXPECT_NE(one->made_of(kQuery), two->made_of(kQuery));
  EXPECT_NE(one->made_of(kQuery), one->made_of("model.layers.1.self_attn.q_proj.weight"));
  EXPECT_FALSE(one->made_of("model.nothing").has_value());
  EXPECT_FALSE(open_checkpoint(golden_folder("tiny-llama"))->made_of(kQuery).has_value());
}

}  // namespace
}  // namespace mesh::engine::testing
