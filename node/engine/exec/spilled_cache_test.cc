#include <gtest/gtest.h>

#include <cstdlib>

#include "node/engine/testing/golden.h"

// Caches that leave the device in the middle of a text, on real models: no bit differs from caches that
// stayed.
namespace mesh::engine::testing {
namespace {

/// On the CPU, and on a GPU where MESHNET_CUDA_LIBRARY names libmeshnet_cuda.so.
class SpilledCaches : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    const char* library = std::getenv("MESHNET_CUDA_LIBRARY");
    if (GetParam() == Device::kCuda && library == nullptr) GTEST_SKIP() << "MESHNET_CUDA_LIBRARY is not set";
    EngineOptions options;
    options.device = GetParam();
    options.threads = 1;
    options.memory_bytes = std::uint64_t{1} << 30;
    options.spill_bytes = std::uint64_t{64} << 20;
    if (library != nullptr) options.cuda_library = library;
    engine_ = *Engine::create(options);
    shard_ = load_all(*engine_, golden_folder("tiny-llama"));
  }
  CacheId open() { return *engine_->open_cache(shard_, {0, 6}, 400); }
  std::vector<float> feed(CacheId cache, Position from, std::uint32_t rows) {
    std::vector<TokenId> ids;
    for (Position p = from; p < from + rows; ++p) ids.push_back(static_cast<TokenId>(7 + p * 31 % 1500));
    const Segment segment = token_segment(cache, std::move(ids), from);
    auto results = engine_->step(shard_, {0, 6}, std::span(&segment, 1));
    EXPECT_TRUE(results.ok() && (*results)[0].status.ok());
    return (*results)[0].logits;
  }

  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const Shard> shard_;
};

TEST_P(SpilledCaches, GoOnToTheBitWhereTheyWere) {
  const CacheId stays = open(), leaves = open(), other = open();
  Position at = 0;
  for (const std::uint32_t rows : {128u, 72u, 1u, 1u, 100u, 1u, 1u}) {
    const std::vector<float> expected = feed(stays, at, rows);
    ASSERT_TRUE(engine_->restore(leaves).ok());
    EXPECT_EQ(feed(leaves, at, rows), expected) << "from token " << at;
    at += rows;
    const auto bytes = engine_->spill(leaves);
    ASSERT_TRUE(bytes.ok());
    EXPECT_GT(*bytes, 0u);
    EXPECT_EQ(engine_->memory().spilled_bytes, *bytes);
    feed(other, 0, 50);  // takes the memory that came free
  }
  engine_->close_cache(leaves);
  EXPECT_EQ(engine_->memory().spilled_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(Devices, SpilledCaches, ::testing::Values(Device::kCpu, Device::kCuda),
                         [](const auto& info) { return info.param == Device::kCpu ? "Cpu" : "Cuda"; });

}  // namespace
}  // namespace mesh::engine::testing
