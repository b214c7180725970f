#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "node/engine/device/cuda_library.h"
#include "node/engine/testing/golden.h"

namespace mesh::engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Gpu, WhatIsMissingIsSaidWithWhatIsNeededAndHowToGetIt) {
  const auto needs = HasSubstr("compute capability 7.5 or newer and driver 580 or newer");
  EXPECT_THAT(judge_gpu(0, "", 0, "").text,
              AllOf(HasSubstr("no NVIDIA driver"), needs, HasSubstr("install")));
  EXPECT_THAT(judge_gpu(12020, "535.183.01", 89, "RTX 4090").text,
              AllOf(HasSubstr("535.183.01"), needs, HasSubstr("install")));
  EXPECT_THAT(judge_gpu(13000, "580.95.05", 0, "").text, AllOf(HasSubstr("no GPU"), needs));
  EXPECT_THAT(judge_gpu(13000, "580.95.05", 61, "GTX 1080").text,
              AllOf(HasSubstr("GTX 1080"), HasSubstr("6.1"), needs));
  EXPECT_FALSE(judge_gpu(12080, "", 90, "H100").usable);
  EXPECT_TRUE(judge_gpu(13000, "580.95.05", 75, "RTX 2080").usable);
}

TEST(Gpu, AskedForWithoutOneIsAnErrorAndAutoGoesOnWithTheCpu) {
  if (probe_gpu().usable) GTEST_SKIP() << "this machine has a GPU";
  const auto wanted = Engine::create({.device = Device::kCuda, .memory_bytes = 1 << 20, .cuda_library = {}});
  EXPECT_EQ(wanted.status().code(), StatusCode::kFailedPrecondition);
  const auto engine =
      Engine::create({.device = Device::kAuto, .threads = 1, .memory_bytes = 1 << 20, .cuda_library = {}});
  ASSERT_TRUE(engine.ok());
  EXPECT_EQ((*engine)->device(), Device::kCpu);
  EXPECT_THAT((*engine)->device_note().brief, HasSubstr("computing on the CPU"));
  EXPECT_LE((*engine)->device_note().brief.size(),
            100u);  // a line that is read; the rest is for --log-level debug
  EXPECT_EQ((*engine)->device_note().details, message_of(wanted.status()));
}

/// On a machine with a GPU; MESHNET_CUDA_LIBRARY names libmeshnet_cuda.so.
class OnGpu : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (std::getenv("MESHNET_CUDA_LIBRARY") == nullptr) GTEST_SKIP() << "MESHNET_CUDA_LIBRARY is not set";
  }
  static std::unique_ptr<Engine> make(ComputeType compute, CudaPath path = CudaPath::kGraphs) {
    auto engine = Engine::create({.device = Device::kCuda,
                                  .compute = compute,
                                  .memory_bytes = std::uint64_t{1} << 30,
                                  .cuda_library = std::getenv("MESHNET_CUDA_LIBRARY"),
                                  .cuda_path = path});
    EXPECT_TRUE(engine.ok()) << message_of(engine.status());
    return engine.ok() ? *std::move(engine) : nullptr;
  }
  /// Logits at the last of a prompt's reported rows against transformers', over the prompts; the last row
  /// first.
  double worst_nmse(ComputeType compute, std::size_t chunk, CudaPath path = CudaPath::kGraphs) {
    const auto engine = make(compute, path);
    if (!engine) return 1;
    const Golden golden = read_golden(GetParam());
    const auto shard = load_all(*engine, golden_folder(GetParam()));
    double worst = 0;
    for (std::size_t i = 0; i < golden.prompts.size(); ++i) {
      const std::vector<TokenId> ids = golden.prompts[i].all();
      const std::size_t row = golden.prompts[i].top_positions.back();
      Chain chain(*engine, shard, {2}, HiddenType::kFloat32, 384);
      const std::vector<float> logits = chain.logits(ids, chunk);
      const std::size_t vocab = shard->profile().vocab;
      const std::vector<float> expected = golden.tensor(std::to_string(i) + ".logits");
      worst = std::max(worst,
                       nmse(std::span(logits).subspan(row * vocab, vocab), std::span(expected).last(vocab)));
    }
    return worst;
  }
};

TEST_P(OnGpu, Float32LogitsAreThoseOfTransformers) {
  EXPECT_LE(worst_nmse(ComputeType::kFloat32, 100), 1e-9);
}

TEST_P(OnGpu, Bfloat16LogitsAreAsGoodAsThoseOfTransformers) {
  EXPECT_LE(worst_nmse(ComputeType::kBfloat16, 128), 1.5 * read_golden(GetParam()).bf16_nmse);
}

TEST_P(OnGpu, EveryPathIsAsGoodTokenByTokenAndInSmallChunks) {
  for (const CudaPath path :
       {CudaPath::kGraphs, CudaPath::kLaunches, CudaPath::kAmpere, CudaPath::kPortable, CudaPath::kEager}) {
    for (const std::size_t chunk : {1u, 2u, 7u}) {
      EXPECT_LE(worst_nmse(ComputeType::kBfloat16, chunk, path), 1.5 * read_golden(GetParam()).bf16_nmse)
          << "path " << static_cast<int>(path) << " chunk " << chunk;
    }
  }
}

TEST_P(OnGpu, GreedyTextIsThatOfTransformers) {
  const auto engine = make(ComputeType::kFloat32);
  ASSERT_NE(engine, nullptr);
  const Golden golden = read_golden(GetParam());
  const auto shard = load_all(*engine, golden_folder(GetParam()));
  for (const GoldenPrompt& prompt : golden.prompts) {
    if (!prompt.free) continue;
    Chain chain(*engine, shard, {3}, HiddenType::kFloat32, 384);
    EXPECT_EQ(generate(chain, prompt.prompt, prompt.completion.size()), prompt.completion);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OnGpu,
                         ::testing::Values("gpt2", "tiny-llama", "tiny-llama-yarn", "tiny-mistral",
                                           "tiny-qwen2", "tiny-qwen3"),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace mesh::engine::testing
