#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "common/json/json.h"
#include "node/engine/models/architecture.h"

namespace mesh::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

json::Object base(std::string_view model_type) {
  if (model_type == "gpt2") {
    return {{"model_type", "gpt2"}, {"n_layer", 4},      {"n_embd", 32},
            {"n_head", 2},          {"n_positions", 64}, {"vocab_size", 100}};
  }
  return {{"model_type", model_type},     {"num_hidden_layers", 4},    {"hidden_size", 32},
          {"num_attention_heads", 4},     {"num_key_value_heads", 2},  {"head_dim", 8},
          {"intermediate_size", 48},      {"vocab_size", 100},         {"max_position_embeddings", 512},
          {"tie_word_embeddings", false}, {"torch_dtype", "bfloat16"}, {"sliding_window", nullptr}};
}

json::Object with(json::Object object, std::string_view key, json::Value value) {
  object[key] = std::move(value);
  return object;
}

std::string text(const json::Object& config) {
  return json::serialize(config);
}

std::string failure(const json::Object& config) {
  const auto spec = read_decoder_spec(text(config));
  return spec.ok() ? "it was accepted" : std::string(message_of(spec.status()));
}

DecoderSpec spec_of(const json::Object& config) {
  auto spec = read_decoder_spec(text(config));
  if (!spec.ok()) ADD_FAILURE() << message_of(spec.status());
  return spec.ok() ? *std::move(spec) : DecoderSpec{};
}

TEST(ModelProfile, CountsALlamasBytesAsByHand) {
  const auto profile = read_model_profile(text(base("llama")));
  ASSERT_TRUE(profile.ok());
  // q 32·32, k and v 16·32 each, o 32·32, gate, up and down 48·32 each.
  const std::uint64_t layer = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32;
  ASSERT_EQ(profile->layer_count(), 4u);
  EXPECT_EQ(profile->layers[0].matrix_values, layer);
  EXPECT_EQ(profile->layers[0].vector_values, 2u * 32);
  EXPECT_EQ(profile->embedding.bytes(WeightFormat::kBfloat16), 100u * 32 * 2);
  EXPECT_EQ(profile->head.bytes(WeightFormat::kFloat32), (100u * 32 + 32) * 4);
  EXPECT_EQ(profile->weight_bytes({1, 3}, false, false, WeightFormat::kBfloat16), 2 * (layer * 2 + 64 * 4));
  EXPECT_EQ(profile->kv_bytes_per_token({0, 4}, WeightFormat::kBfloat16), 4u * 2 * 2 * 8 * 2);
  EXPECT_THAT(profile->split_points, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(profile->max_positions, 512u);
  EXPECT_EQ(profile->matrix_format(WeightFormat::kFloat32), WeightFormat::kBfloat16);
}

TEST(ModelProfile, CountsATiedMatrixOnceForAShardWithBothEnds) {
  const auto profile = read_model_profile(text(with(base("qwen2"), "tie_word_embeddings", true)));
  ASSERT_TRUE(profile.ok());
  const auto bytes = [&](bool embedding, bool head) {
    return profile->weight_bytes({0, 0}, embedding, head, WeightFormat::kBfloat16);
  };
  EXPECT_EQ(bytes(true, false), 100u * 32 * 2);
  EXPECT_EQ(bytes(false, true), 100u * 32 * 2 + 32 * 4);
  EXPECT_EQ(bytes(true, true), 100u * 32 * 2 + 32 * 4);
}

TEST(ModelProfile, CountsQuantisedBytesAsByHand) {
  const auto profile = read_model_profile(text(with(base("llama"), "hidden_size", 64)));
  ASSERT_TRUE(profile.ok());
  // q, k, v 64 rows, gate and up 96, of 64 weights; o 64 of 32 and down 64 of 48, which are no whole NF4
  // blocks.
  const std::uint64_t rows = 64 + 96, others = 64 * (32 + 4) + 64 * (48 + 4) + 2 * 64 * 4;
  EXPECT_EQ(profile->layers[0].bytes(WeightFormat::kInt8), rows * (64 + 4) + others);
  EXPECT_EQ(profile->layers[0].bytes(WeightFormat::kNf4), rows * (32 + 4) + others);
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kNf4}) {
    EXPECT_EQ(profile->embedding.bytes(format), 100u * 64 * 2);  // not tied: only looked up
    EXPECT_EQ(profile->head.bytes(format), 100u * (64 + 4) + 64 * 4);
  }
  EXPECT_EQ(profile->matrix_format(WeightFormat::kFloat32, Quantization::kNf4), WeightFormat::kNf4);
  // FP8: a scale for each gcd(in, 128): 64, 32 and 16.
  EXPECT_EQ(profile->layers[0].bytes(WeightFormat::kFp8),
            rows * (64 + 4) + 64 * (32 + 4) + 64 * (48 + 3 * 4) + 2 * 64 * 4);
  EXPECT_EQ(profile->embedding.bytes(WeightFormat::kFp8), 100u * 64 * 2);
  EXPECT_EQ(profile->head.bytes(WeightFormat::kFp8), 100u * (64 + 4) + 64 * 4);
  EXPECT_EQ(profile->matrix_format(WeightFormat::kFloat32, Quantization::kFp8), WeightFormat::kFp8);
}

TEST(ModelProfile, AHeadMadeAtLoadIsOfInt8RowsUnderEveryQuantization) {
  // FP8 and NF4 rows of 192 would have three scales each, INT8 rows have one.
  for (const bool tied : {false, true}) {
    const auto config = with(with(base("llama"), "hidden_size", 192), "tie_word_embeddings", tied);
    const auto profile = read_model_profile(text(config));
    ASSERT_TRUE(profile.ok());
    for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kNf4, WeightFormat::kFp8}) {
      EXPECT_EQ(profile->head.bytes(format), 100u * (192 + 4) + 192 * 4) << to_string(format);
      EXPECT_EQ(profile->embedding.bytes(format), 100u * (tied ? 192 + 4 : 192 * 2)) << to_string(format);
    }
  }
}

TEST(ModelProfile, ModulesThatACheckpointKeepsCountAsBfloat16) {
  json::Object config{{"quant_method", "fp8"}, {"modules_to_not_convert", {"model.layers.1.mlp", "lm_head"}}};
  const auto profile = read_model_profile(text(with(base("llama"), "quantization_config", config)));
  ASSERT_TRUE(profile.ok());
  EXPECT_EQ(profile->stored_quantization, Quantization::kFp8);
  const std::uint64_t attention = (64 + 32) * (32 + 4), norms = 2 * 32 * 4;
  EXPECT_EQ(profile->layers[0].bytes(WeightFormat::kFp8),
            attention + 96 * (32 + 4) + 32 * (48 + 3 * 4) + norms);
  EXPECT_EQ(profile->layers[1].bytes(WeightFormat::kFp8), attention + 3 * 48 * 32 * 2 + norms);
  EXPECT_EQ(profile->head.bytes(WeightFormat::kFp8), 100u * 32 * 2 + 32 * 4);
}

TEST(ModelProfile, KnowsWhatACheckpointIsQuantisedTo) {
  json::Object config{
      {"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}};
  const auto profile = read_model_profile(text(with(base("llama"), "quantization_config", config)));
  ASSERT_TRUE(profile.ok());
  EXPECT_EQ(*profile->quantization(Quantization::kNone), Quantization::kNf4);
  EXPECT_FALSE(profile->quantization(Quantization::kInt8).ok());
  // Blocks of 64 run across rows of 32 and 48: pieces of 32 and 16 have a scale each.
  const std::uint64_t rows = 64 + 32 + 96;
  EXPECT_EQ(profile->layers[0].bytes(WeightFormat::kNf4), rows * (16 + 4) + 32u * (24 + 12) + 2 * 32 * 4);
  EXPECT_EQ(profile->head.bytes(WeightFormat::kNf4), 100u * 32 * 2 + 32 * 4);
  config["bnb_4bit_quant_type"] = "fp4";
  EXPECT_THAT(failure(with(base("llama"), "quantization_config", config)), HasSubstr("fp4"));
}

TEST(ModelProfile, AllowsRangesInsideTheModelOnly) {
  const auto profile = read_model_profile(text(base("mistral")));
  ASSERT_TRUE(profile.ok());
  EXPECT_TRUE(profile->allows({0, 4}));
  EXPECT_TRUE(profile->allows({0, 0}));
  EXPECT_FALSE(profile->allows({3, 5}));
  EXPECT_FALSE(profile->allows({3, 2}));
}

TEST(Families, EachFileOfArchIsRegistered) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(MESH_SOURCE_DIR "/node/engine/models/arch")) {
    if (entry.path().extension() == ".cc") files.push_back(entry.path().stem());
  }
  std::sort(files.begin(), files.end());
  const auto names = supported_model_types();
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.end()), files);
}

TEST(Families, AnUnknownOneIsRefusedWithTheListOfThoseSupported) {
  EXPECT_THAT(failure(base("mamba")),
              HasSubstr("\"mamba\" is not supported; supported are gpt2, llama, mistral, qwen2, qwen3"));
}

class Family : public ::testing::TestWithParam<std::string> {};

TEST_P(Family, ReadsNestedTextConfig) {
  json::Object inner = base(GetParam());
  const json::Object outer{{"model_type", "a_wrapper"}, {"text_config", inner}};
  EXPECT_EQ(spec_of(outer).profile.layer_count(), 4u);
}

TEST_P(Family, RefusesWhatChangesTheMathematics) {
  for (const char* key : {"attn_logit_softcapping", "num_local_experts", "residual_multiplier"}) {
    EXPECT_THAT(failure(with(base(GetParam()), key, 30)), HasSubstr(key));
  }
  const json::Object quantised{{"quant_method", "awq"}};
  EXPECT_THAT(failure(with(base(GetParam()), "quantization_config", quantised)), HasSubstr("\"awq\""));
  const char* activation = GetParam() == "gpt2" ? "activation_function" : "hidden_act";
  EXPECT_THAT(failure(with(base(GetParam()), activation, "relu6")), HasSubstr("\"relu6\" is not supported"));
}

TEST_P(Family, NamesWhatIsMissingOrOfAWrongTypeOrSize) {
  const bool gpt2 = GetParam() == "gpt2";
  json::Object config = base(GetParam());
  config.erase(gpt2 ? "n_layer" : "num_hidden_layers");
  EXPECT_THAT(failure(config), HasSubstr(gpt2 ? "n_layer" : "num_hidden_layers"));
  EXPECT_THAT(failure(with(base(GetParam()), "vocab_size", "many")), HasSubstr("vocab_size"));
  EXPECT_THAT(failure(with(base(GetParam()), "vocab_size", 4000000000u)), HasSubstr("vocab_size"));
  EXPECT_THAT(failure(with(base(GetParam()), gpt2 ? "n_embd" : "hidden_size", 0)), HasSubstr("must lie in"));
}

INSTANTIATE_TEST_SUITE_P(All, Family, ::testing::Values("gpt2", "llama", "mistral", "qwen2", "qwen3"));

class RotaryFamily : public ::testing::TestWithParam<std::string> {};

TEST_P(RotaryFamily, BothStylesOfConfigMeanTheSame) {
  const json::Object scaling{
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  json::Object modern = scaling;
  modern["rope_theta"] = 50000.0;
  json::Object older = scaling;
  older.erase("rope_type");
  older["type"] = "yarn";
  const auto new_style = spec_of(with(base(GetParam()), "rope_parameters", modern));
  const auto old_style = spec_of(with(with(base(GetParam()), "rope_scaling", older), "rope_theta", 50000.0));
  EXPECT_EQ(new_style.rope.frequencies, old_style.rope.frequencies);
  EXPECT_EQ(new_style.rope.attention_scale, old_style.rope.attention_scale);
  EXPECT_NEAR(new_style.rope.attention_scale, 0.1 * std::log(4.0) + 1, 1e-6);
}

TEST_P(RotaryFamily, PartialRotationIsReadInEitherPlace) {
  const json::Object params{
      {"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.5}};
  const auto inside = spec_of(with(base(GetParam()), "rope_parameters", params));
  const auto outside = spec_of(with(base(GetParam()), "partial_rotary_factor", 0.5));
  EXPECT_EQ(inside.rope.dims, 4u);
  EXPECT_EQ(inside.rope.frequencies, outside.rope.frequencies);
  EXPECT_THAT(outside.rope.frequencies, ElementsAre(1.0f, 0.01f));
}

TEST_P(RotaryFamily, RefusesAnUnknownRopeType) {
  const json::Object params{{"rope_type", "longrope"}, {"factor", 4.0}};
  EXPECT_THAT(failure(with(base(GetParam()), "rope_parameters", params)),
              HasSubstr("\"longrope\" is not supported"));
  const json::Object sections{{"rope_type", "default"}, {"mrope_section", json::Array{1, 1, 2}}};
  EXPECT_THAT(failure(with(base(GetParam()), "rope_scaling", sections)), HasSubstr("mrope_section"));
}

TEST_P(RotaryFamily, DtypeIsReadUnderBothNames) {
  EXPECT_EQ(spec_of(base(GetParam())).profile.stated_dtype, "bfloat16");
  json::Object modern = base(GetParam());
  modern.erase("torch_dtype");
  EXPECT_EQ(spec_of(with(modern, "dtype", "float16")).profile.stated_dtype, "float16");
}

INSTANTIATE_TEST_SUITE_P(All, RotaryFamily, ::testing::Values("llama", "mistral", "qwen2", "qwen3"));

/// Frequencies of transformers' llama3 rule, worked out from its formula: θ = 10000, four pairs, factor 8,
/// low 1, high 4, original 64: wavelengths 6.28, 62.8, 628, 6283; the first is under 64 / 4, the last two are
/// over 64 / 1, the second lies between with s = (64 / 62.83 − 1) / 3.
TEST(Rope, Llama3ScalesByWavelength) {
  const json::Object params{{"rope_type", "llama3"},   {"rope_theta", 10000.0},
                            {"factor", 8.0},           {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 64}};
  const auto spec = spec_of(with(base("llama"), "rope_parameters", params));
  const double smooth = (64 / (2 * M_PI / 0.1) - 1) / 3;
  ASSERT_EQ(spec.rope.frequencies.size(), 4u);
  EXPECT_FLOAT_EQ(spec.rope.frequencies[0], 1);
  EXPECT_FLOAT_EQ(spec.rope.frequencies[1], static_cast<float>((1 - smooth) * 0.1 / 8 + smooth * 0.1));
  EXPECT_FLOAT_EQ(spec.rope.frequencies[2], 0.01f / 8);
  EXPECT_FLOAT_EQ(spec.rope.frequencies[3], 0.001f / 8);
}

std::vector<std::uint32_t> windows(const DecoderSpec& spec) {
  std::vector<std::uint32_t> list;
  for (const LayerSpec& layer : spec.layers) list.push_back(layer.window);
  return list;
}

TEST(Windows, QwenUsesThemOnlyWhenAskedTo) {
  json::Object config = with(with(base("qwen3"), "sliding_window", 16), "max_window_layers", 2);
  EXPECT_THAT(windows(spec_of(config)), ElementsAre(0, 0, 0, 0));
  config["use_sliding_window"] = true;
  EXPECT_THAT(windows(spec_of(config)), ElementsAre(0, 0, 16, 16));
  config["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(windows(spec_of(config)), ElementsAre(16, 0, 0, 16));
  config["layer_types"] = {"sliding_attention", "linear_attention", "full_attention", "full_attention"};
  EXPECT_THAT(failure(config), HasSubstr("linear_attention"));
}

TEST(Windows, MistralHasOneForAllLayersUnlessItIsNull) {
  EXPECT_THAT(windows(spec_of(base("mistral"))), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(windows(spec_of(with(base("mistral"), "sliding_window", 9))), ElementsAre(9, 9, 9, 9));
  json::Object absent = base("mistral");
  absent.erase("sliding_window");
  EXPECT_THAT(windows(spec_of(absent)), ElementsAre(4096, 4096, 4096, 4096));
}

TEST(Biases, FollowTheFamily) {
  EXPECT_TRUE(spec_of(base("llama")).layer_plans[0].qkv.biases.empty());
  EXPECT_EQ(spec_of(with(base("llama"), "attention_bias", true)).layer_plans[0].attention_out.biases.size(),
            1u);
  EXPECT_EQ(spec_of(base("qwen2")).layer_plans[0].qkv.biases.size(), 3u);
  EXPECT_TRUE(spec_of(base("qwen2")).layer_plans[0].attention_out.biases.empty());
  EXPECT_THAT(failure(with(base("mistral"), "attention_bias", true)), HasSubstr("attention_bias"));
}

TEST(ReadsConfig, BrokenJsonIsAnErrorThatNamesTheFile) {
  const auto profile = read_model_profile("{\"model_type\": ");
  ASSERT_FALSE(profile.ok());
  EXPECT_THAT(std::string(message_of(profile.status())), HasSubstr("config.json"));
  EXPECT_FALSE(read_model_profile("[]").ok());
  EXPECT_FALSE(read_model_profile("{}").ok());
}

}  // namespace
}  // namespace mesh::engine
