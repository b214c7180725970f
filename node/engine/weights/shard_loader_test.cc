#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>

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

std::uint64_t memory_now(const char* what) {  // of /proc/self/status
  std::ifstream status("/proc/self/status");
  const std::string format = std::string(what) + ": %llu kB";
  unsigned long long kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (std::sscanf(line.c_str(), format.c_str(), &kib) == 1) break;
  }
  return std::uint64_t{kib} << 10;
}

/// The most memory that this process has had since the last call.
std::uint64_t peak_of(const std::function<void()>& body) {
  std::ofstream("/proc/self/clear_refs") << "5";
  body();
  return memory_now("VmHWM");
}

/// A checkpoint in a file, of `layers` layers of 40 MB.
class WideCheckpoint {
 public:
  explicit WideCheckpoint(std::uint32_t layers)
      : edited_("tiny-llama", [&](Tensors& tensors) {
          tensors.clear();
          const auto add = [&](const std::string& name, std::vector<std::uint64_t> shape) {
            std::uint64_t bytes = 2;
            for (const std::uint64_t extent : shape) bytes *= extent;
            std::string data(bytes, '\0');
            for (std::size_t i = 0; i < data.size(); i += 2)
              data[i] = static_cast<char>(i / 2), data[i + 1] = '\x3c';
            tensors[name] = {safetensors::Dtype::kBF16, std::move(shape), std::move(data)};
          };
          add("model.embed_tokens.weight", {128, kWidth});
          add("model.norm.weight", {kWidth});
          add("lm_head.weight", {128, kWidth});
          for (std::uint32_t i = 0; i < layers; ++i) {
            const std::string layer = fmt::format("model.layers.{}.", i);
            for (const char* name : {"input_layernorm", "post_attention_layernorm"})
              add(layer + name + ".weight", {kWidth});
            for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
              add(layer + "self_attn." + name + ".weight", {kWidth, kWidth});
            for (const char* name : {"gate_proj", "up_proj"})
              add(layer + "mlp." + name + ".weight", {kInner, kWidth});
            add(layer + "mlp.down_proj.weight", {kWidth, kInner});
          }
        }) {
    std::ofstream(std::filesystem::path(edited_.folder()) / "config.json") << fmt::format(
        R"({{"model_type": "llama", "num_hidden_layers": {}, "hidden_size": {}, "intermediate_size": {},
                            "num_attention_heads": 16, "vocab_size": 128, "torch_dtype": "bfloat16"}})",
        layers, kWidth, kInner);
  }
  std::string folder() const { return edited_.folder(); }

 private:
  static constexpr std::uint64_t kWidth = 1024, kInner = 5120;
  EditedCheckpoint edited_;
};

TEST(ShardLoader, AtItsPeakALoadTakesTheShardAndOneLayer) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep memory that was freed";
#endif
  constexpr std::uint64_t kMargin = 4u << 20;  // threads' stacks, the allocator's slack
  const WideCheckpoint made(4);
  for (const Quantization quantization : {Quantization::kNone, Quantization::kFp8}) {
    const auto engine = cpu_engine(ComputeType::kBfloat16);
    const auto checkpoint = open_checkpoint(made.folder());
    const ModelProfile profile = *read_model_profile(*checkpoint->files().read_small("config.json"));
    const ShardSpec spec = shard_of(profile, {0, 4}, quantization);
    const ShardNeeds needs = *engine->shard_needs(*checkpoint, {}, spec);
    const std::uint64_t before = memory_now("VmRSS");
    std::shared_ptr<const Shard> shard;
    const std::uint64_t peak = peak_of([&] { shard = *engine->load(*checkpoint, {}, spec, {}); });
    EXPECT_LE(peak - before, needs.weight_bytes + profile.layers[0].bytes(WeightFormat::kBfloat16) + kMargin)
        << to_string(quantization);
    EXPECT_LE(peak - before, needs.weight_bytes + needs.loading_bytes + kMargin) << to_string(quantization);
    // And then the shard alone.
    EXPECT_LE(memory_now("VmRSS") - before, needs.weight_bytes + kMargin) << to_string(quantization);
  }
}

/// A checkpoint of another machine, from where layer `slow` comes only when `go_on` says so.
class SlowCheckpoint final : public hub::Checkpoint {
 public:
  SlowCheckpoint(std::shared_ptr<hub::Checkpoint> inner, std::string slow, std::function<bool()> go_on)
      : Checkpoint(std::shared_ptr<hub::ModelFiles>(inner, &inner->files()), inner->tensor_files()),
        inner_(std::move(inner)),
        slow_(std::move(slow)),
        go_on_(std::move(go_on)) {}
  StatusOr<safetensors::TensorInfo> info(std::string_view tensor) override { return inner_->info(tensor); }
  Status ensure(const std::vector<std::string>& tensors, const hub::ProgressFn& progress) override {
    if (tensors[0].find(slow_) == std::string::npos) return absl::OkStatus();
    while (!go_on_()) {
      if (!progress({.bytes_done = 1, .bytes_total = 2})) return error(StatusCode::kCancelled, "cancelled");
      std::this_thread::yield();
    }
    return absl::OkStatus();
  }
  StatusOr<std::string_view> slice(std::string_view tensor, std::uint64_t begin,
                                   std::uint64_t length) override {
    return inner_->slice(tensor, begin, length);
  }
  StatusOr<std::string_view> read(std::string_view tensor, std::uint64_t begin, std::uint64_t length,
                                  safetensors::ReadBuffer& buffer) override {
    return inner_->read(tensor, begin, length, buffer);
  }
  void release(std::string_view span) override { inner_->release(span); }

 private:
  const std::shared_ptr<hub::Checkpoint> inner_;
  const std::string slow_;
  const std::function<bool()> go_on_;
};

std::string hidden_of(Engine& engine, const std::shared_ptr<const Shard>& shard, const LayerRange& range) {
  Segment segment;
  segment.cache = *engine.open_cache(shard, range, 16);
  segment.rows = 2;
  segment.ids = {5, 6};
  const auto results = engine.step(shard, range, std::span(&segment, 1));
  EXPECT_TRUE(results.ok() && (*results)[0].status.ok());
  engine.close_cache(segment.cache);
  return (*results)[0].hidden;
}

TEST(ShardLoader, TheFirstLayersAreUsedWhileTheLastOnesAreStillFetched) {
  const auto engine = cpu_engine(ComputeType::kFloat32);
  const auto files = open_checkpoint(golden_folder("tiny-llama"));
  std::string early;  // what layers [0, 4) gave during the load
  std::atomic<bool> used = false;
  SlowCheckpoint checkpoint(files, "layers.4.", [&] { return used.load(); });
  const auto progress = [&](const LoadProgress& so_far) {
    EXPECT_EQ(so_far.ready.begin, 0u);
    EXPECT_LT(so_far.ready.end, 6u) << "the last one is ready with the shard";
    if (so_far.ready.end != 4 || used) return true;
    const auto part = engine->load(checkpoint, {}, {so_far.ready, true, false}, [](const LoadProgress&) {
      ADD_FAILURE() << "what is there is read again";
      return true;
    });
    EXPECT_TRUE(part.ok());
    if (part.ok()) early = hidden_of(*engine, *part, so_far.ready);
    used = true;
    return part.ok();
  };
  const auto whole = engine->load(checkpoint, {}, {{0, 6}, true, true}, progress);
  ASSERT_TRUE(whole.ok()) << message_of(whole.status());
  EXPECT_EQ(early, hidden_of(*engine, *whole, {0, 4}));
}

TEST(ShardLoader, AFetchThatEndsEndsTheLoad) {
  const auto engine = cpu_engine(ComputeType::kFloat32);
  SlowCheckpoint checkpoint(open_checkpoint(golden_folder("tiny-llama")), "layers.2.", [] { return false; });
  const auto shard = engine->load(checkpoint, {}, {{0, 6}, true, true},
                                  [](const LoadProgress& so_far) { return !so_far.fetching; });
  EXPECT_EQ(shard.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(engine->memory().weight_bytes, 0u);
}

TEST(ShardLoader, LayersAreThereOneByOneWhileOthersServe) {
  const std::string folder = golden_folder("tiny-llama");
  const auto engine = cpu_engine(ComputeType::kFloat32);
  const auto serving = load(*engine, folder, {0, 2});
  Segment segment;
  segment.cache = *engine->open_cache(serving, {0, 2}, 512);
  segment.rows = 2;
  segment.ids = {5, 6};
  const auto checkpoint = open_checkpoint(folder);
  const auto left = [&] {
    return engine->shard_needs(*checkpoint, {}, {{2, 6}, false, false})->weight_bytes;
  };
  std::uint64_t last = left();
  // Called in the middle of a load: the stage serves, and what has been read is not read again by any shard.
  const auto progress = [&](const LoadProgress&) {
    const auto results = engine->step(serving, {0, 2}, std::span(&segment, 1));
    EXPECT_TRUE(results.ok() && (*results)[0].status.ok());
    segment.start += segment.rows;
    EXPECT_LE(left(), last);
    return true;
  };
  std::vector<std::shared_ptr<const Shard>> longer;
  for (std::uint32_t end = 3; end <= 6; ++end) {
    longer.push_back(*engine->load(*checkpoint, {}, {{2, end}, false, false}, progress));
    EXPECT_LT(left(), last) << end;
    last = left();
  }
  EXPECT_GT(segment.start, 0u);
  EXPECT_EQ(last, 0u);
}

}  // namespace
}  // namespace mesh::engine::testing
