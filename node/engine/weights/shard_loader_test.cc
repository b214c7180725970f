#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include "node/engine/testing/edited_checkpoint.h"
#include "node/engine/testing/golden.h"

namespace mesh::engine::testing {
namespace {

using ::testing::HasSubstr;

std::string load_failure(const std::string& folder, const ShardSpec& spec) {
  const auto engine = cpu_engine(ComputeType::kFloat32);
  const auto shard = engine->load(*open_checkpoint(folder), {}, spec, {});
  return shard.ok() ? "it was loaded" : std::string(message_of(shard.status()));
}

bool of_layer(const std::string& name, std::uint32_t first, std::uint32_t last) {
  for (std::uint32_t i = first; i < last; ++i) {
    if (name.find(fmt::format(".{}.", i)) != std::string::npos) return true;
  }
  return false;
}

/// Every value a NaN.
void poison(EditableTensor& tensor) {
  for (char& byte : tensor.data) byte = '\xff';
}

TEST(ShardLoader, TensorsOutsideOfTheRangeMayBePoisoned) {
  const EditedCheckpoint poisoned("tiny-llama", [](Tensors& tensors) {
    for (auto& [name, tensor] : tensors) {
      if (!of_layer(name, 2, 4)) poison(tensor);
    }
  });
  const auto engine = cpu_engine(ComputeType::kFloat32);
  const auto run = [&](const std::string& folder) {
    const auto shard = load(*engine, folder, {2, 4});
    Segment segment;
    segment.cache = *engine->open_cache(shard, {2, 4}, 8);
    segment.rows = 3;
    segment.hidden = std::string(3 * 128 * 2, '\x3c');
    auto results = engine->step(shard, {2, 4}, std::span(&segment, 1));
    EXPECT_TRUE(results.ok() && (*results)[0].status.ok());
    return (*results)[0].hidden;
  };
  EXPECT_EQ(run(poisoned.folder()), run(golden_folder("tiny-llama")));
}

TEST(ShardLoader, ReadsNoPageBesideItsRange) {
  const auto engine = cpu_engine(ComputeType::kFloat32);
  const auto checkpoint = open_checkpoint(golden_folder("tiny-llama"));
  const auto shard = engine->load(*checkpoint, {}, {{2, 4}, false, false}, {});
  ASSERT_TRUE(shard.ok());
  EXPECT_LE(*checkpoint->resident_bytes(), (1u << 20));
}

TEST(ShardLoader, NamesMissingTensorsOfItsRangeOnly) {
  const EditedCheckpoint edited("tiny-llama", [](Tensors& tensors) {
    tensors.erase("model.layers.3.mlp.up_proj.weight");
    tensors.erase("lm_head.weight");
  });
  EXPECT_THAT(load_failure(edited.folder(), {{2, 4}, false, false}),
              HasSubstr("1 tensors are missing: model.layers.3.mlp.up_proj.weight"));
  EXPECT_THAT(load_failure(edited.folder(), {{4, 6}, false, true}), HasSubstr("lm_head.weight"));
  EXPECT_EQ(load_failure(edited.folder(), {{0, 2}, true, false}), "it was loaded");
}

TEST(ShardLoader, NamesTensorsThatTheFamilyDoesNotHave) {
  const EditedCheckpoint edited("tiny-llama", [](Tensors& tensors) {
    tensors["model.layers.1.self_attn.q_norm.weight"] = {safetensors::Dtype::kF32, {2}, std::string(8, '\0')};
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = {
        safetensors::Dtype::kF32, {2}, std::string(8, '\0')};
  });
  const std::string failure = load_failure(edited.folder(), {{0, 2}, true, false});
  EXPECT_THAT(failure, HasSubstr("model.layers.1.self_attn.q_norm.weight"));
  EXPECT_THAT(failure, ::testing::Not(HasSubstr("inv_freq")));
}

TEST(ShardLoader, NamesTensorsOfAWrongShapeOrType) {
  const EditedCheckpoint edited("tiny-llama", [](Tensors& tensors) {
    tensors["model.layers.0.self_attn.k_proj.weight"].shape = {128, 64};
    tensors["model.layers.0.input_layernorm.weight"].dtype = safetensors::Dtype::kI16;
  });
  const std::string failure = load_failure(edited.folder(), {{0, 1}, false, false});
  EXPECT_THAT(failure, HasSubstr("model.layers.0.self_attn.k_proj.weight is [128, 64], needed [64, 128]"));
  EXPECT_THAT(failure, HasSubstr("model.layers.0.input_layernorm.weight is I16"));
}

/// The same checkpoint with every tensor in another type.
void widen_all(Tensors& tensors) {
  for (auto& [name, tensor] : tensors) {
    std::string wide(tensor.data.size() * 2, '\0');
    for (std::size_t i = 0; i < tensor.data.size(); i += 2) std::memcpy(&wide[2 * i + 2], &tensor.data[i], 2);
    tensor.data = std::move(wide);
    tensor.dtype = safetensors::Dtype::kF32;
  }
}

/// bfloat16 to float16 with the same value; those that float16 cannot hold become 0 in both.
void halve_all(Tensors& tensors) {
  for (auto& [name, tensor] : tensors) {
    for (std::size_t i = 0; i < tensor.data.size(); i += 2) {
      std::uint16_t bits;
      std::memcpy(&bits, &tensor.data[i], 2);
      const int exponent = ((bits >> 7) & 0xff) - 127 + 15;
      const bool fits = exponent > 0 && exponent < 31;
      bits = static_cast<std::uint16_t>(fits ? (bits & 0x8000) | exponent << 10 | (bits & 0x7f) << 3 : 0);
      std::memcpy(&tensor.data[i], &bits, 2);
    }
    tensor.dtype = safetensors::Dtype::kF16;
  }
}

/// float16 widened again to bfloat16, which loses nothing here.
void halve_and_back(Tensors& tensors) {
  halve_all(tensors);
  for (auto& [name, tensor] : tensors) {
    for (std::size_t i = 0; i < tensor.data.size(); i += 2) {
      std::uint16_t bits;
      std::memcpy(&bits, &tensor.data[i], 2);
      const int exponent = (bits >> 10) & 0x1f;
      if (exponent != 0)
        bits = static_cast<std::uint16_t>((bits & 0x8000) | (exponent + 112) << 7 | (bits >> 3 & 0x7f));
      std::memcpy(&tensor.data[i], &bits, 2);
    }
    tensor.dtype = safetensors::Dtype::kBF16;
  }
}

std::vector<float> logits_of(const std::string& folder, ComputeType compute) {
  const auto engine = cpu_engine(compute);
  Chain chain(*engine, load_all(*engine, folder), {}, HiddenType::kFloat32, 64);
  const std::vector<TokenId> ids{7, 8, 900, 1500};
  return chain.logits(ids);
}

TEST(ShardLoader, Float32OnDiskGivesTheSameLogitsAsItsBfloat16) {
  const EditedCheckpoint wide("tiny-qwen2", widen_all);
  EXPECT_EQ(logits_of(wide.folder(), ComputeType::kFloat32),
            logits_of(golden_folder("tiny-qwen2"), ComputeType::kFloat32));
  EXPECT_EQ(logits_of(wide.folder(), ComputeType::kBfloat16),
            logits_of(golden_folder("tiny-qwen2"), ComputeType::kBfloat16));
}

TEST(ShardLoader, Float16OnDiskGivesTheSameLogitsAsEqualBfloat16) {
  std::vector<float> expected;
  {
    const EditedCheckpoint same("tiny-gpt2", halve_and_back);
    expected = logits_of(same.folder(), ComputeType::kFloat32);
  }
  const EditedCheckpoint half("tiny-gpt2", halve_all);
  EXPECT_EQ(logits_of(half.folder(), ComputeType::kFloat32), expected);
}

TEST(ShardLoader, NamesWithoutThePrefixAreFound) {
  const EditedCheckpoint bare("tiny-gpt2", [](Tensors& tensors) {
    Tensors renamed;
    for (auto& [name, tensor] : tensors) renamed[name.substr(std::string("transformer.").size())] = tensor;
    tensors = std::move(renamed);
    tensors["h.0.attn.bias"] = {safetensors::Dtype::kU8, {1}, std::string(1, '\1')};
  });
  EXPECT_EQ(logits_of(bare.folder(), ComputeType::kFloat32),
            logits_of(golden_folder("tiny-gpt2"), ComputeType::kFloat32));
}

TEST(ShardLoader, ATiedHeadCountsOnBothEndsAndOnceTogether) {
  const auto engine = cpu_engine(ComputeType::kBfloat16);
  const auto checkpoint = open_checkpoint(golden_folder("tiny-qwen2"));
  const auto bytes = [&](const ShardSpec& spec) {
    return engine->shard_needs(*checkpoint, {}, spec)->weight_bytes;
  };
  const std::uint64_t matrix = 2048u * 128 * 2, norm = 128 * 4;
  EXPECT_EQ(bytes({{0, 0}, true, false}), matrix);
  EXPECT_EQ(bytes({{6, 6}, false, true}), matrix + norm);
  EXPECT_EQ(bytes({{0, 0}, true, true}), matrix + norm);
}

}  // namespace
}  // namespace mesh::engine::testing
