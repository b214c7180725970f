#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "node/engine/ops/backend.h"
#include "node/engine/testing/edited_checkpoint.h"
#include "node/engine/testing/golden.h"

namespace mesh::engine::testing {
namespace {

using ::testing::HasSubstr;

std::string said(const Status& status) {
  return std::string(message_of(status));
}

class EngineTest : public ::testing::Test {
 protected:
  const std::string folder_ = golden_folder("tiny-llama");
  std::unique_ptr<Engine> engine_ = cpu_engine(ComputeType::kFloat32);
  std::shared_ptr<const Shard> shard_ = load_all(*engine_, folder_);
  const LayerRange all_{0, 6};

  CacheId open(const LayerRange& range, Position positions = 256) {
    auto cache = engine_->open_cache(shard_, range, positions);
    EXPECT_TRUE(cache.ok()) << said(cache.status());
    return *cache;
  }
  SegmentResult run(const Segment& segment, const LayerRange& range) {
    auto results = engine_->step(shard_, range, std::span(&segment, 1));
    EXPECT_TRUE(results.ok()) << said(results.status());
    return results.ok() ? std::move((*results)[0])
                        : SegmentResult{.status = results.status(), .hidden = {}, .tokens = {}, .logits = {}};
  }
  SegmentResult run(const Segment& segment) { return run(segment, all_); }
};

TEST_F(EngineTest, ARowIsTheSameToTheBitBesideAnyOtherRows) {
  const std::vector<TokenId> ids{5, 99, 1200, 7};
  const std::vector<float> alone = run(token_segment(open(all_), ids)).logits;
  std::vector<Segment> batch;
  for (int i = 0; i < 7; ++i)
    batch.push_back(
        token_segment(open(all_), std::vector<TokenId>(static_cast<std::size_t>(1 + 13 * i), 40 + i)));
  batch.insert(batch.begin() + 3, token_segment(open(all_), ids));
  const auto results = engine_->step(shard_, all_, batch);
  ASSERT_TRUE(results.ok());
  EXPECT_EQ((*results)[3].logits, alone);
}

TEST_F(EngineTest, ALoadIsNotGivenWhatCachesWerePromised) {
  const auto checkpoint = open_checkpoint(folder_);
  const ShardSpec spec = shard_of(shard_->profile(), all_);
  const auto fresh = cpu_engine(ComputeType::kFloat32);
  const ShardNeeds needs = *fresh->shard_needs(*checkpoint, {}, spec);
  const auto engine = Engine::create({.device = Device::kCpu,
                                      .compute = ComputeType::kFloat32,
                                      .threads = 1,
                                      .memory_bytes = needs.total() + 1'000'000,
                                      .cuda_library = {}});
  ASSERT_TRUE(engine.ok());
  auto promise = (*engine)->promise_caches();
  ASSERT_TRUE(promise->resize(1'000'001).ok());
  EXPECT_EQ((*engine)->shard_needs(*checkpoint, {}, spec).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ((*engine)->load(*checkpoint, {}, spec, {}).status().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(promise->resize(1'000'000).ok());
  const auto loaded = (*engine)->load(*checkpoint, {}, spec, {});
  ASSERT_TRUE(loaded.ok()) << said(loaded.status());
  EXPECT_TRUE((*engine)->open_cache(*loaded, all_, 128).ok()) << "out of the promise";
}

TEST(EnginePath, IsTheOneAskedForOrRefused) {
  const auto logits_of = [](const std::string& path, ComputeType compute) {
    const auto engine = Engine::create(
        {.device = Device::kCpu, .compute = compute, .threads = 1, .cuda_library = {}, .cpu_path = path});
    EXPECT_TRUE(engine.ok()) << said(engine.status());
    Chain chain(**engine, load_all(**engine, golden_folder("tiny-llama")), {}, HiddenType::kFloat32, 64);
    return chain.logits(read_golden("tiny-llama").prompts[1].prompt);
  };
  const auto paths = ops::available_cpu_paths();
  EXPECT_EQ(logits_of("auto", ComputeType::kBfloat16),
            logits_of(std::string(ops::to_string(paths.front())), ComputeType::kBfloat16));
  const auto portable = logits_of("portable", ComputeType::kFloat32);
  for (const ops::CpuPath path : paths) {
    if (path == ops::CpuPath::kPortable) continue;
    const auto logits = logits_of(std::string(ops::to_string(path)), ComputeType::kFloat32);
    EXPECT_LE(nmse(logits, portable), 1e-9) << ops::to_string(path);
    EXPECT_NE(logits, portable) << ops::to_string(path) << ": wider vectors sum in another order";
  }
  const auto refused =
      Engine::create({.device = Device::kCpu, .cuda_library = {}, .cpu_path = "sse2"}).status();
  EXPECT_THAT(said(refused), HasSubstr("unknown CPU path \"sse2\": use portable, avx2"));
}

TEST_F(EngineTest, ANarrowerRangeThanTheShardsRuns) {
  Segment first = token_segment(open({0, 2}), {3, 4, 5});
  first.want = Want::kHidden;
  first.out_type = HiddenType::kFloat32;
  const std::string hidden = run(first, {0, 2}).hidden;
  ASSERT_EQ(hidden.size(), 3u * 128 * 4);
  Segment second;
  second.cache = open({2, 6});
  second.rows = 3;
  second.hidden = hidden;
  second.hidden_type = HiddenType::kFloat32;
  second.want = Want::kTokens;
  second.want_logits = true;
  EXPECT_EQ(run(second, {2, 6}).logits, run(token_segment(open(all_), {3, 4, 5})).logits);
}

TEST_F(EngineTest, AnEmptyRangeWithTheEmbeddingEmbedsOnly) {
  const auto checkpoint = open_checkpoint(folder_);
  const auto embed = engine_->load(*checkpoint, identity_for("other"), {{0, 0}, true, false}, {});
  ASSERT_TRUE(embed.ok()) << said(embed.status());
  Segment segment = token_segment(*engine_->open_cache(*embed, {0, 0}, 16), {9});
  segment.want = Want::kHidden;
  segment.out_type = HiddenType::kBfloat16;
  const auto results = engine_->step(*embed, {0, 0}, std::span(&segment, 1));
  ASSERT_TRUE(results.ok() && (*results)[0].status.ok());
  const auto row = checkpoint->slice("model.embed_tokens.weight", 9 * 128 * 2, 128 * 2);
  ASSERT_TRUE(row.ok());
  EXPECT_EQ((*results)[0].hidden, *row);
}

TEST_F(EngineTest, ASegmentBelowTheCursorTrimsAndOneAboveItIsRefused) {
  const CacheId cache = open(all_);
  const std::vector<float> expected = run(token_segment(open(all_), {1, 2, 3, 4})).logits;
  ASSERT_TRUE(run(token_segment(cache, {1, 2, 9, 9, 9})).status.ok());
  EXPECT_EQ(engine_->cache_state(cache)->next, 5u);
  EXPECT_EQ(run(token_segment(cache, {3, 4}, 2)).logits, expected);
  EXPECT_EQ(engine_->cache_state(cache)->next, 4u);
  const Status gap = run(token_segment(cache, {3}, 7)).status;
  EXPECT_EQ(gap.code(), StatusCode::kOutOfRange);
  EXPECT_THAT(said(gap), HasSubstr("starts at token 7, the cache has 4"));
  ASSERT_TRUE(engine_->trim(cache, 2).ok());
  EXPECT_EQ(run(token_segment(cache, {3, 4}, 2)).logits, expected);
  EXPECT_EQ(engine_->trim(cache, 200).code(), StatusCode::kOutOfRange);
}

TEST_F(EngineTest, ABadSegmentFailsAloneAndSaysWhy) {
  const auto expect_error = [&](Segment bad, const std::string& why) {
    const Segment good = token_segment(open(all_), {1, 2, 3});
    const std::vector<Segment> both{std::move(bad), good};
    const auto results = engine_->step(shard_, all_, both);
    ASSERT_TRUE(results.ok());
    EXPECT_THAT(said((*results)[0].status), HasSubstr(why));
    EXPECT_TRUE((*results)[1].status.ok()) << said((*results)[1].status);
  };
  expect_error(token_segment(open(all_), {1, 2048}), "token id 2048 is outside of the vocabulary of 2048");
  expect_error(token_segment(open(all_), {-1}), "token id -1");
  expect_error(token_segment(CacheId{9999}, {1}), "no cache 9999");
  expect_error(token_segment(open({0, 5}), {1}), "opened for layers");
  expect_error(token_segment(open(all_), std::vector<TokenId>(300, 1)), "room for 256");
  Segment segment = token_segment(open(all_), {1});
  segment.rows = 0;
  expect_error(segment, "1 … 1024 rows");
  segment = token_segment(open(all_), {1});
  segment.sample_rows = {1};
  expect_error(segment, "row 1 is to be sampled");
  segment = token_segment(open(all_), {1});
  segment.sampling.top_p = 2;
  expect_error(segment, "top_p");
  segment = token_segment(open(all_), {1, 2});
  segment.mask = AttentionMask{{0, 0, 0}};
  expect_error(segment, "a mask of 3 values");
  segment.mask = AttentionMask{{0, 0, -INFINITY, -INFINITY}};
  expect_error(segment, "hides every key");
}

TEST_F(EngineTest, HiddenStatesThatAreNotFiniteOrOfAWrongSizeAreRefused) {
  Segment segment;
  segment.cache = open({1, 3});
  segment.rows = 2;
  segment.hidden = std::string(2 * 128 * 2, '\0');
  EXPECT_TRUE(run(segment, {1, 3}).status.ok());
  segment.start = 2;
  segment.hidden[101] = '\x7f';
  segment.hidden[100] = '\xc0';
  EXPECT_THAT(said(run(segment, {1, 3}).status), HasSubstr("not finite"));
  segment.hidden.pop_back();
  EXPECT_THAT(said(run(segment, {1, 3}).status), HasSubstr("511 bytes of hidden states, needed 512"));
  EXPECT_EQ(engine_->cache_state(segment.cache)->next, 2u);
}

TEST_F(EngineTest, AnOverflowFailsItsSegmentAloneAndLeavesNoTrace) {
  const EditedCheckpoint huge_values("tiny-llama", [](Tensors& tensors) {
    for (std::size_t i = 0; i < tensors["model.layers.1.self_attn.v_proj.weight"].data.size(); i += 2) {
      tensors["model.layers.1.self_attn.v_proj.weight"].data.replace(i, 2, "\x7f\x7f");  // 3.4e38
    }
  });
  shard_ = load(*engine_, huge_values.folder(), {1, 3});
  const auto segment_of = [&](CacheId cache, std::uint32_t rows, char fill) {
    Segment segment;
    segment.cache = cache;
    segment.rows = rows;
    segment.hidden = std::string(rows * 128 * 2, fill);
    return segment;
  };
  const std::string expected = run(segment_of(open({1, 3}), 1, 0), {1, 3}).hidden;
  ASSERT_FALSE(expected.empty());
  const CacheId cache = open({1, 3});
  const std::vector<Segment> both{segment_of(cache, 3, 0x3c), segment_of(open({1, 3}), 1, 0)};
  const auto results = engine_->step(shard_, {1, 3}, both);
  ASSERT_TRUE(results.ok());
  EXPECT_EQ((*results)[0].status.code(), StatusCode::kDataLoss) << said((*results)[0].status);
  EXPECT_TRUE((*results)[0].hidden.empty());
  EXPECT_EQ((*results)[1].hidden, expected);
  EXPECT_EQ(engine_->cache_state(cache)->next, 0u);
  EXPECT_EQ(run(segment_of(cache, 1, 0), {1, 3}).hidden, expected);
}

TEST_F(EngineTest, ACausalMaskGivenByTheCallerChangesNothingAndAnOtherOneDoes) {
  const std::vector<TokenId> ids{11, 12, 13};
  const std::vector<float> expected = run(token_segment(open(all_), ids)).logits;
  Segment masked = token_segment(open(all_), ids);
  const float hide = -std::numeric_limits<float>::infinity();
  masked.mask = AttentionMask{{0, hide, hide, 0, 0, hide, 0, 0, 0}};
  EXPECT_EQ(run(masked).logits, expected);
  masked.cache = open(all_);
  masked.mask->additive[6] = hide;
  EXPECT_NE(run(masked).logits, expected);
}

TEST_F(EngineTest, RotaryPositionsReplaceTheTokensPlaces) {
  Segment shifted = token_segment(open(all_), {11, 12, 13});
  const std::vector<float> expected = run(shifted).logits;
  shifted.cache = open(all_);
  shifted.rotary_positions = {0, 1, 2};
  EXPECT_EQ(run(shifted).logits, expected);
  shifted.cache = open(all_);
  shifted.rotary_positions = {0, 1, 9};
  EXPECT_NE(run(shifted).logits, expected);
}

TEST_F(EngineTest, CachesAreReservedAndGivenBack) {
  const std::uint64_t before = engine_->memory().cache_bytes;
  const CacheId cache = open({1, 4}, 129);
  const CacheState state = *engine_->cache_state(cache);
  EXPECT_EQ(state.blocks, 2u * 3);
  // 128 tokens × (K and V) × 2 heads × 32 values × 4 bytes.
  EXPECT_EQ(state.bytes, 6u * 128 * 2 * 2 * 32 * 4);
  EXPECT_EQ(engine_->memory().cache_bytes, before + state.bytes);
  EXPECT_EQ(engine_->memory().cache_blocks, 6u);
  engine_->close_cache(cache);
  engine_->close_cache(cache);
  EXPECT_EQ(engine_->memory().cache_bytes, before);
  EXPECT_EQ(engine_->memory().caches, 0u);
  EXPECT_EQ(engine_->open_cache(shard_, all_, 513).status().code(), StatusCode::kOutOfRange);
  EXPECT_FALSE(engine_->open_cache(shard_, all_, 0).ok());
  EXPECT_FALSE(engine_->open_cache(shard_, {4, 7}, 10).ok());
}

TEST_F(EngineTest, TooLittleMemoryIsRefusedBeforeLoadingWithTheNumbers) {
  const auto small = cpu_engine(ComputeType::kFloat32, 1 << 20);
  const auto checkpoint = open_checkpoint(folder_);
  const auto needs = small->shard_needs(*checkpoint, {}, {{0, 6}, true, true});
  ASSERT_EQ(needs.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(said(needs.status()), HasSubstr("free 1.0 MiB (1048576 bytes)"));
  EXPECT_THAT(said(needs.status()), HasSubstr("needed "));
  EXPECT_THAT(said(needs.status()), HasSubstr("--memory"));
  EXPECT_FALSE(small->load(*checkpoint, {}, {{0, 6}, true, true}, {}).ok());
  EXPECT_EQ(small->memory().weight_bytes, 0u);
  const std::uint64_t all = engine_->shard_needs(*checkpoint, {}, {{0, 6}, true, true})->weight_bytes;
  const auto half = cpu_engine(ComputeType::kFloat32, engine_->memory().working_bytes + all / 2);
  EXPECT_FALSE(half->load(*checkpoint, {}, {{0, 6}, true, true}, {}).ok());
  EXPECT_EQ(half->memory().free_bytes(), half->memory().budget_bytes) << "working space for no shard";

  const auto exact =
      cpu_engine(ComputeType::kFloat32, engine_->shard_needs(*checkpoint, {}, {{0, 6}, true, true})->total() +
                                            engine_->memory().working_bytes);
  const auto shard = load_all(*exact, folder_);
  std::vector<CacheId> caches;  // what loading took is free again
  while (caches.size() < 100) {
    const auto cache = exact->open_cache(shard, all_, 512);
    if (!cache.ok()) {
      EXPECT_EQ(cache.status().code(), StatusCode::kResourceExhausted);
    }
    if (!cache.ok()) break;
    caches.push_back(*cache);
  }
  const MemoryUse memory = exact->memory();
  EXPECT_LT(caches.size(), 100u);
  EXPECT_LE(memory.weight_bytes + memory.cache_bytes + memory.working_bytes, memory.budget_bytes);
}

TEST_F(EngineTest, ShardsShareTheirPartsAndFreeThemWithTheLast) {
  const std::uint64_t whole = engine_->memory().weight_bytes;
  const auto checkpoint = open_checkpoint(folder_);
  const ModelIdentity identity = shard_->identity();
  EXPECT_EQ(engine_->shard_needs(*checkpoint, identity, {{2, 6}, false, true})->weight_bytes, 0u);
  auto part = load(*engine_, folder_, {2, 4});
  EXPECT_EQ(engine_->memory().weight_bytes, whole);
  shard_.reset();
  EXPECT_EQ(engine_->memory().weight_bytes, part->bytes());
  EXPECT_GT(engine_->shard_needs(*checkpoint, identity, {{2, 6}, false, true})->weight_bytes, 0u);
  part.reset();
  EXPECT_EQ(engine_->memory().weight_bytes, 0u);
}

TEST_F(EngineTest, RangesOutsideOfTheModelAreRefused) {
  const auto checkpoint = open_checkpoint(folder_);
  EXPECT_THAT(said(engine_->shard_needs(*checkpoint, {}, {{4, 9}, false, true}).status()),
              HasSubstr("layers [0, 6)"));
  EXPECT_FALSE(engine_->shard_needs(*checkpoint, {}, {{3, 2}, false, false}).ok());
  EXPECT_FALSE(engine_->shard_needs(*checkpoint, {}, {{3, 3}, false, false}).ok());
}

TEST_F(EngineTest, LoadsGoOnBesideStepsAndCanBeCancelled) {
  const Golden golden = read_golden("tiny-llama");
  const std::vector<TokenId>& ids = golden.prompts[2].prompt;
  const std::vector<float> expected = run(token_segment(open(all_), ids)).logits;
  std::atomic<bool> stop = false;
  std::thread loader([&] {
    for (int i = 0; !stop; ++i) {
      const auto checkpoint = open_checkpoint(folder_);
      const auto loaded =
          engine_->load(*checkpoint, identity_for(std::to_string(i % 2)), {{1, 5}, false, false}, {});
      EXPECT_TRUE(loaded.ok());
    }
  });
  for (int i = 0; i < 10; ++i) {
    const CacheId cache = open(all_);
    EXPECT_EQ(run(token_segment(cache, ids)).logits, expected);
    engine_->close_cache(cache);
  }
  stop = true;
  loader.join();
  const auto checkpoint = open_checkpoint(folder_);
  // A short load may say how far it is but once.
  const auto cancelled = engine_->load(*checkpoint, {}, {{1, 5}, false, false},
                                       [](const LoadProgress& progress) { return progress.fetching; });
  EXPECT_EQ(cancelled.status().code(), StatusCode::kCancelled);
}

TEST_F(EngineTest, SampledRowsAndTheBestIdsAreReported) {
  Segment segment = token_segment(open(all_), {4, 5, 6, 7});
  segment.sample_rows = {1, 3};
  segment.top = 2;
  const SegmentResult result = run(segment);
  ASSERT_EQ(result.tokens.size(), 2u);
  EXPECT_EQ(result.logits.size(), 2u * 2048);
  for (const SampledToken& token : result.tokens) {
    ASSERT_EQ(token.top.size(), 2u);
    EXPECT_EQ(token.top[0].id, token.id);
    EXPECT_GE(token.top[0].logprob, token.top[1].logprob);
  }
  EXPECT_EQ(result.tokens[0].id, run(token_segment(open(all_), {4, 5})).tokens[0].id);
}

}  // namespace
}  // namespace mesh::engine::testing
