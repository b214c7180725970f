#include "node/tools/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "common/safetensors/writer.h"
#include "node/engine/testing/edited_checkpoint.h"

namespace mesh::tools {
namespace {

using engine::testing::EditedCheckpoint;
using engine::testing::golden_folder;
using engine::testing::open_checkpoint;
using engine::testing::Tensors;
using ::testing::HasSubstr;

constexpr const char* kGolden = MESH_SOURCE_DIR "/tests/golden/operations/tiny-qwen3.safetensors";

CompareOptions options(engine::ComputeType compute = engine::ComputeType::kFloat32) {
  CompareOptions options;
  options.engine = {.device = engine::Device::kCpu,
                    .compute = compute,
                    .threads = 1,
                    .memory_bytes = std::uint64_t{1} << 28,
                    .cuda_library = {}};
  return options;
}

Comparison compared(const std::string& folder, const CompareOptions& options) {
  auto comparison = compare(*open_checkpoint(folder), kGolden, options);
  EXPECT_TRUE(comparison.ok()) << comparison.status();
  return comparison.ok() ? *std::move(comparison) : Comparison{};
}

/// The first that differs when the middle value of `tensor` is 1 more.
std::string first_wrong(const std::string& tensor) {
  const EditedCheckpoint edited("tiny-qwen3", [&](Tensors& tensors) {
    std::string& data = tensors.at(tensor).data;  // bfloat16
    std::uint16_t bits;
    char* const at = &data[data.size() / 4 * 2];
    std::memcpy(&bits, at, 2);
    float value;
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    std::memcpy(&value, &wide, 4);
    value += 1;
    std::uint32_t changed;
    std::memcpy(&changed, &value, 4);
    bits = static_cast<std::uint16_t>(changed >> 16);
    std::memcpy(at, &bits, 2);
  });
  const Comparison comparison = compared(edited.folder(), options());
  const ComparedOperation* const first = comparison.first_wrong();
  return first == nullptr ? "nothing" : first->name;
}

TEST(Compare, TheCheckpointOfTheReferenceAgreesInEveryOperation) {
  const Comparison comparison = compared(golden_folder("tiny-qwen3"), options());
  ASSERT_EQ(comparison.operations.size(), 6u * 15 + 3);
  EXPECT_EQ(comparison.first_wrong(), nullptr) << to_text(comparison);
  EXPECT_EQ(comparison.operations.front().name, "embedding");
  EXPECT_EQ(comparison.operations.back().name, "logits");
  EXPECT_THAT(to_text(comparison), HasSubstr("93 operations agree"));
}

TEST(Compare, ComputingInBfloat16AgreesWithinItsOwnTolerance) {
  const Comparison comparison =
      compared(golden_folder("tiny-qwen3"), options(engine::ComputeType::kBfloat16));
  EXPECT_EQ(comparison.tolerance, 1e-3);
  EXPECT_EQ(comparison.first_wrong(), nullptr) << to_text(comparison);
}

TEST(Compare, NamesLayerAndOperationOfAWrongTensor) {
  EXPECT_EQ(first_wrong("model.layers.1.input_layernorm.weight"), "layer.1.attention_norm");
  EXPECT_EQ(first_wrong("model.layers.3.self_attn.q_proj.weight"), "layer.3.q");
  EXPECT_EQ(first_wrong("model.layers.3.self_attn.k_proj.weight"), "layer.3.k");
  EXPECT_EQ(first_wrong("model.layers.5.self_attn.v_proj.weight"), "layer.5.v");
  EXPECT_EQ(first_wrong("model.layers.0.self_attn.q_norm.weight"), "layer.0.q_norm");
  EXPECT_EQ(first_wrong("model.layers.2.self_attn.k_norm.weight"), "layer.2.k_norm");
  EXPECT_EQ(first_wrong("model.layers.2.self_attn.o_proj.weight"), "layer.2.attention_residual");
  EXPECT_EQ(first_wrong("model.layers.4.post_attention_layernorm.weight"), "layer.4.mlp_norm");
  EXPECT_EQ(first_wrong("model.layers.4.mlp.gate_proj.weight"), "layer.4.gate");
  EXPECT_EQ(first_wrong("model.layers.4.mlp.up_proj.weight"), "layer.4.up");
  EXPECT_EQ(first_wrong("model.layers.4.mlp.down_proj.weight"), "layer.4.hidden");
  EXPECT_EQ(first_wrong("model.norm.weight"), "final_norm");
  EXPECT_EQ(first_wrong("lm_head.weight"), "logits");
}

TEST(Compare, NamesTheOperationWhoseValuesAreNotFinite) {
  const EditedCheckpoint edited("tiny-qwen3", [](Tensors& tensors) {
    for (char& byte : tensors.at("model.layers.2.mlp.up_proj.weight").data) byte = '\xff';
  });
  const Comparison comparison = compared(edited.folder(), options());
  ASSERT_NE(comparison.first_wrong(), nullptr);
  EXPECT_EQ(comparison.first_wrong()->name, "layer.2.up");
  EXPECT_THAT(to_text(comparison), HasSubstr("layer.2.up differs"));
}

/// A reference with one tensor beside its ids 17, 900, 5.
std::string refusal(const std::string& name, std::vector<std::uint64_t> shape, std::size_t values) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("mesh-compare-{}", ::getpid());
  const std::int32_t ids[] = {17, 900, 5};
  const std::vector<float> data(values, 1);
  EXPECT_TRUE(
      safetensors::write_safetensors(
          path, {{"ids", safetensors::Dtype::kI32, {3}, {reinterpret_cast<const char*>(ids), sizeof ids}},
                 {name,
                  safetensors::Dtype::kF32,
                  shape,
                  {reinterpret_cast<const char*>(data.data()), data.size() * sizeof(float)}}})
          .ok());
  const auto comparison = compare(*open_checkpoint(golden_folder("tiny-qwen3")), path, options());
  std::filesystem::remove(path);
  return comparison.ok() ? "it was compared" : std::string(message_of(comparison.status()));
}

TEST(Compare, RefusesReferencesThatAreNotOfThisModel) {
  EXPECT_THAT(refusal("layer.9.q", {3, 2}, 6), HasSubstr("does not compute: layer.9.q"));
  EXPECT_THAT(refusal("layer.0.queries", {3, 2}, 6), HasSubstr("layer.0.queries"));
  EXPECT_THAT(refusal("layer.0.q", {3, 2}, 6), HasSubstr("layer.0.q has 2 values a row in the reference"));
  EXPECT_THAT(refusal("layer.0.q", {2, 3}, 6), HasSubstr("layer.0.q is not F32 [3, width]"));
}

}  // namespace
}  // namespace mesh::tools
