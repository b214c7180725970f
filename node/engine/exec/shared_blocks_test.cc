#include <gtest/gtest.h>

#include "node/engine/testing/golden.h"

// Caches that begin with blocks of others, on real models: no bit differs from a cache that computed them.
namespace mesh::engine::testing {
namespace {

class BegunWithBlocks : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Engine> engine_ = cpu_engine(ComputeType::kFloat32);
  std::shared_ptr<const Shard> shard_ = load_all(*engine_, golden_folder(GetParam()));
  const LayerRange all_{0, shard_->profile().layer_count()};

  CacheId open() { return *engine_->open_cache(shard_, all_, 320); }
  /// Logits of every row of ids [from, to), in chunks.
  std::vector<float> feed(CacheId cache, const std::vector<TokenId>& ids, std::size_t from, std::size_t to,
                          std::size_t chunk) {
    std::vector<float> logits;
    while (from < to) {
      const std::size_t end = std::min(to, from + chunk);
      Segment segment = token_segment(
          cache,
          {ids.begin() + static_cast<std::ptrdiff_t>(from), ids.begin() + static_cast<std::ptrdiff_t>(end)},
          static_cast<Position>(from));
      for (std::uint32_t row = 0; row < segment.rows; ++row) segment.sample_rows.push_back(row);
      auto results = engine_->step(shard_, all_, std::span(&segment, 1));
      EXPECT_TRUE(results.ok() && (*results)[0].status.ok());
      const auto& more = (*results)[0].logits;
      logits.insert(logits.end(), more.begin(), more.end());
      from = end;
    }
    return logits;
  }
};

TEST_P(BegunWithBlocks, GivesTheSameBits) {
  std::vector<TokenId> ids;
  for (int i = 0; i < 310; ++i) ids.push_back(7 + i * 31 % 1500);
  const std::size_t vocab = shard_->profile().vocab;
  const CacheId cold = open();
  const std::vector<float> expected = feed(cold, ids, 0, ids.size(), 128);
  std::vector<std::shared_ptr<const SharedBlock>> blocks{*engine_->share(cold, 0), *engine_->share(cold, 1)};
  engine_->close_cache(cold);
  const auto tail = [&](std::size_t from) {
    return std::vector<float>(expected.begin() + static_cast<std::ptrdiff_t>(from * vocab), expected.end());
  };

  const CacheId warm = open();
  ASSERT_TRUE(engine_->attach(warm, blocks, 256).ok());
  EXPECT_EQ(feed(warm, ids, 256, ids.size(), 40), tail(256));
  // Trimmed into a shared block: the last token of a prompt of whole blocks is computed again.
  const CacheId trimmed = open();
  ASSERT_TRUE(engine_->attach(trimmed, blocks, 256).ok());
  EXPECT_EQ(feed(trimmed, ids, 255, ids.size(), 128), tail(255));
  // Another text writes over both blocks of its own cache; what is kept stays as it was.
  const CacheId other = open();
  ASSERT_TRUE(engine_->attach(other, blocks, 256).ok());
  feed(other, std::vector<TokenId>(200, 3), 0, 200, 64);
  const CacheId again = open();
  ASSERT_TRUE(engine_->attach(again, blocks, 256).ok());
  EXPECT_EQ(feed(again, ids, 256, ids.size(), 128), tail(256));
}

INSTANTIATE_TEST_SUITE_P(Families, BegunWithBlocks,
                         ::testing::Values("tiny-llama", "tiny-gpt2", "tiny-mistral", "tiny-qwen2-window",
                                           "tiny-qwen3"),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace mesh::engine::testing
