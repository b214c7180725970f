#include "node/engine/models/quantization_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mesh::engine {
namespace {

using ::testing::HasSubstr;

StatusOr<StoredWeights> read(const json::Object& quantization) {
  const json::Value config = json::Object{{"quantization_config", quantization}};
  return read_stored_weights(json::View(config));
}

std::string failure(const json::Object& quantization) {
  const auto stored = read(quantization);
  return stored.ok() ? "it was accepted" : std::string(message_of(stored.status()));
}

/// As published checkpoints state it.
json::Object blocks() {
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {128, 128}},
          {"modules_to_not_convert", {"lm_head", "model.layers.1", "mlp.gate"}}};
}

json::Object channels() {
  const json::Object weights{
      {"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}, {"symmetric", true}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}},
          {"ignore", {"lm_head", "re:.*self_attn\\.k_proj$", "re:vision_.*layers"}}};
}

TEST(StoredWeights, OfFp8AreReadInAllTheirForms) {
  EXPECT_EQ(read(blocks())->quantization, Quantization::kFp8);
  EXPECT_EQ(read(channels())->quantization, Quantization::kFp8);
  EXPECT_EQ(read({{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", 1200.0}})->quantization,
            Quantization::kFp8);
  json::Object whole = blocks();
  whole["weight_block_size"] = nullptr;
  whole["activation_scheme"] = "static";
  EXPECT_EQ(read(whole)->quantization, Quantization::kFp8);
  json::Object block_groups = channels();
  auto& weights = block_groups["config_groups"].as_object()["group_0"].as_object()["weights"].as_object();
  weights["strategy"] = "block";
  weights["block_structure"] = {128, 128};
  EXPECT_EQ(read(block_groups)->quantization, Quantization::kFp8);
  const json::Value none = json::Object{};
  EXPECT_EQ(read_stored_weights(json::View(none))->quantization, Quantization::kNone);
}

TEST(StoredWeights, LayoutsThatAreNotKnownAreRefusedWithWhatIs) {
  json::Object config = blocks();
  config["weight_block_size"] = {64, 128};
  EXPECT_THAT(failure(config), HasSubstr("weight_block_size: FP8 scales for blocks of [64,128]"));
  EXPECT_THAT(failure(config), HasSubstr("supported are blocks of [128, 128]"));
  config = blocks();
  config["fmt"] = "e5m2";
  EXPECT_THAT(failure(config), HasSubstr("e5m2"));
  config = channels();
  config["format"] = "pack-quantized";
  EXPECT_THAT(failure(config), HasSubstr("\"pack-quantized\" are not supported"));
  for (const auto& [key, value, said] :
       {std::tuple("num_bits", json::Value(4), "float weights of 4 bits"),
        std::tuple("type", json::Value("int"), "int weights of 8 bits"),
        std::tuple("strategy", json::Value("group"), "group scales"),
        std::tuple("symmetric", json::Value(false), "asymmetric channel scales")}) {
    json::Object changed = channels();
    changed["config_groups"].as_object()["group_0"].as_object()["weights"].as_object()[key] = value;
    EXPECT_THAT(failure(changed), HasSubstr(said));
  }
  config = channels();
  config["transform_config"] = json::Object{{"config_groups", {{"R1", 1}}}};
  EXPECT_THAT(failure(config), HasSubstr("transform_config"));
  config = channels();
  config.erase("config_groups");
  EXPECT_THAT(failure(config), HasSubstr("config_groups"));
  EXPECT_THAT(failure({{"quant_method", "gptq"}}), HasSubstr("\"gptq\" are not supported; use a bfloat16"));
}

TEST(KeptModules, ANameMeansTheModuleAllBelowItAndPathsThatEndWithIt) {
  const KeptModules kept = read(blocks())->kept;
  EXPECT_TRUE(kept.contains("lm_head"));
  EXPECT_TRUE(kept.contains("model.lm_head"));
  EXPECT_TRUE(kept.contains("model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(kept.contains("model.layers.7.mlp.gate"));
  EXPECT_FALSE(kept.contains("model.layers.11.mlp.up_proj"));
  EXPECT_FALSE(kept.contains("model.layers.7.mlp.gate_proj"));
  EXPECT_FALSE(kept.contains("model.head"));
}

TEST(KeptModules, ExpressionsFitFromTheBeginning) {
  const KeptModules kept = read(channels())->kept;
  EXPECT_TRUE(kept.contains("model.layers.3.self_attn.k_proj"));
  EXPECT_FALSE(kept.contains("model.layers.3.self_attn.k_proj_b"));
  EXPECT_FALSE(kept.contains("model.layers.3.self_attn_k_proj"));
  EXPECT_TRUE(kept.contains("vision_tower.layers.4.fc1"));
  EXPECT_FALSE(kept.contains("model.vision_tower.layers.4.fc1"));
}

TEST(KeptModules, ExpressionsOfOtherKindsAreRefused) {
  for (const char* text : {"re:(q|k)_proj", "re:layers.[0-9]", "re:a+", "re:a\\d", "re:a*"}) {
    json::Object config = channels();
    config["ignore"] = json::Array(1, json::Value(text));
    EXPECT_THAT(failure(config), HasSubstr("name the modules instead")) << text;
  }
  json::Object config = channels();
  config["ignore"] = json::Array(1, json::Value(7));
  EXPECT_THAT(failure(config), HasSubstr("ignore[0]"));
  config["ignore"] = json::Array(65, json::Value("re:.*x"));
  EXPECT_THAT(failure(config), HasSubstr("at most 64"));
}

// With back-tracking this would take longer than the universe has.
TEST(KeptModules, ExpressionsTakeNoMoreStepsThanCharactersTimesCharacters) {
  json::Object config = channels();
  std::string runs = "re:";
  for (int i = 0; i < 200; ++i) runs += ".*a";
  config["ignore"] = {runs + "b$"};
  EXPECT_FALSE(read(config)->kept.contains(std::string(2000, 'a')));
}

}  // namespace
}  // namespace mesh::engine
