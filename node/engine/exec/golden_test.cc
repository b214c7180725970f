#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "node/engine/testing/golden.h"

// Every family against transformers (tests/golden), within the acceptance figures of its README and of
// session.md.
namespace mesh::engine::testing {
namespace {

constexpr double kMaxDifference = 1e-4;
constexpr double kMaxNmse = 1e-9;
constexpr double kNearTie = 0.02;

class GoldenModel : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr Position kPositions = 384;

  Golden golden_ = read_golden(GetParam() == "tiny-llama-4x" ? "tiny-llama" : GetParam());
  std::unique_ptr<Engine> engine_ = cpu_engine(ComputeType::kFloat32);
  std::shared_ptr<const Shard> shard_ = load_all(*engine_, golden_folder(GetParam()));

  Position limit() const { return std::min(kPositions, shard_->profile().max_positions); }
  Chain chain(const std::vector<std::uint32_t>& splits = {}, HiddenType hand_over = HiddenType::kFloat32) {
    return Chain(*engine_, shard_, splits, hand_over, limit());
  }
  std::vector<std::uint32_t> all_splits() const {
    std::vector<std::uint32_t> splits;
    for (std::uint32_t i = 1; i < shard_->profile().layer_count(); ++i) splits.push_back(i);
    return splits;
  }
  /// Prompts that fit into the engine's context.
  std::vector<std::size_t> fitting() const {
    std::vector<std::size_t> prompts;
    for (std::size_t i = 0; i < golden_.prompts.size(); ++i) {
      if (golden_.prompts[i].all().size() <= limit()) prompts.push_back(i);
    }
    return prompts;
  }
  /// The rows of `logits` that golden.safetensors has of a prompt.
  std::vector<float> golden_rows(std::size_t prompt, const std::vector<float>& logits) const {
    const std::size_t vocab = shard_->profile().vocab;
    const auto& positions = golden_.prompts[prompt].top_positions;
    std::vector<float> rows;
    for (std::size_t i = positions.size() < 2 ? 0 : positions.size() - 2; i < positions.size(); ++i) {
      const auto from = logits.begin() + static_cast<std::ptrdiff_t>(positions[i] * vocab);
      rows.insert(rows.end(), from, from + static_cast<std::ptrdiff_t>(vocab));
    }
    return rows;
  }
};

TEST_P(GoldenModel, LogitsAreThoseOfTransformersWhenSplitAfterEveryLayer) {
  for (const std::size_t index : fitting()) {
    const GoldenPrompt& prompt = golden_.prompts[index];
    const std::vector<TokenId> ids = prompt.all();
    Chain split = chain(all_splits());
    const std::vector<float> logits = split.logits(ids);
    const std::vector<float> expected = golden_.tensor(std::to_string(index) + ".logits");
    EXPECT_LE(max_difference(golden_rows(index, logits), expected), kMaxDifference) << "prompt " << index;
    EXPECT_LE(nmse(golden_rows(index, logits), expected), kMaxNmse) << "prompt " << index;

    const std::size_t vocab = shard_->profile().vocab;
    for (std::size_t row = 0; row < prompt.argmax.size(); ++row) {
      const auto from = logits.begin() + static_cast<std::ptrdiff_t>(row * vocab);
      const auto best = std::max_element(from, from + static_cast<std::ptrdiff_t>(vocab)) - from;
      if (prompt.argmax_margin[row] >= kNearTie) {
        EXPECT_EQ(best, prompt.argmax[row]) << "prompt " << index << " row " << row;
      }
    }
  }
}

TEST_P(GoldenModel, SplitsAndChunksChangeNoBit) {
  const std::vector<std::size_t> prompts = fitting();
  const std::size_t longest =
      *std::max_element(prompts.begin(), prompts.end(), [&](std::size_t a, std::size_t b) {
        return golden_.prompts[a].prompt.size() < golden_.prompts[b].prompt.size();
      });
  const std::vector<TokenId>& ids = golden_.prompts[longest].prompt;
  Chain whole = chain();
  const std::vector<float> expected = whole.logits(ids);
  Chain split = chain(all_splits());
  EXPECT_EQ(split.logits(ids), expected);
  for (const std::size_t chunk : {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{65},
                                  std::size_t{127}, std::size_t{128}, std::size_t{129}}) {
    Chain chunked = chain();
    EXPECT_EQ(chunked.logits(ids, chunk), expected) << "chunks of " << chunk;
  }
}

TEST_P(GoldenModel, GreedyTextIsThatOfTransformers) {
  std::size_t compared = 0;
  for (const std::size_t index : fitting()) {
    const GoldenPrompt& prompt = golden_.prompts[index];
    if (!prompt.free) continue;
    Chain free = chain();
    EXPECT_EQ(generate(free, prompt.prompt, prompt.completion.size()), prompt.completion)
        << "prompt " << index;
    ++compared;
  }
  EXPECT_GE(compared, 3u);
}

TEST_P(GoldenModel, LogprobsAreThoseOfTransformers) {
  for (const std::size_t index : fitting()) {
    const GoldenPrompt& prompt = golden_.prompts[index];
    Chain forced = chain();
    std::span<const TokenId> feed = prompt.prompt;
    for (std::size_t i = 0; i < std::min(prompt.completion.size(), std::size_t{16}); ++i) {
      const SampledToken token = forced.next(feed);
      if (prompt.margins[i] >= kNearTie) {
        ASSERT_EQ(token.id, prompt.completion[i]) << "prompt " << index << " token " << i;
        ASSERT_NEAR(token.logprob, prompt.logprobs[i], 1e-4) << "prompt " << index << " token " << i;
      }
      feed = std::span(prompt.completion).subspan(i, 1);
    }
  }
}

TEST_P(GoldenModel, EightSessionsThatBeginAtDifferentTimesGiveTheTextsTheyGiveAlone) {
  struct Session {
    const GoldenPrompt* prompt;
    CacheId cache;
    std::vector<TokenId> ids;
  };
  const LayerRange range{0, shard_->profile().layer_count()};
  constexpr std::size_t kTokens = 16;
  std::vector<Session> sessions;
  for (const std::size_t index : fitting()) {
    if (sessions.size() == 8) break;
    sessions.push_back({&golden_.prompts[index], *engine_->open_cache(shard_, range, limit()), {}});
  }
  while (sessions.size() < 8)
    sessions.push_back({sessions[1].prompt, *engine_->open_cache(shard_, range, limit()), {}});
  for (std::size_t round = 0; round < kTokens + 8; ++round) {
    std::vector<Segment> segments;
    std::vector<Session*> owners;
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      Session& session = sessions[i];
      if (round < i || session.ids.size() == kTokens) continue;
      Segment segment;
      segment.cache = session.cache;
      segment.ids = session.ids.empty() ? session.prompt->prompt : std::vector<TokenId>{session.ids.back()};
      segment.rows = static_cast<std::uint32_t>(segment.ids.size());
      segment.start = session.ids.empty()
                          ? 0
                          : static_cast<Position>(session.prompt->prompt.size() + session.ids.size() - 1);
      segment.want = Want::kTokens;
      segments.push_back(std::move(segment));
      owners.push_back(&session);
    }
    const auto results = engine_->step(shard_, range, segments);
    ASSERT_TRUE(results.ok());
    for (std::size_t i = 0; i < owners.size(); ++i) {
      ASSERT_TRUE((*results)[i].status.ok()) << message_of((*results)[i].status);
      owners[i]->ids.push_back((*results)[i].tokens.at(0).id);
    }
  }
  for (Session& session : sessions) {
    Chain alone = chain();
    EXPECT_EQ(session.ids, generate(alone, session.prompt->prompt, kTokens));
    engine_->close_cache(session.cache);
  }
}

TEST_P(GoldenModel, RoundedHandOverStaysNearTransformersWithTheSameRounding) {
  std::set<std::vector<std::uint32_t>> seen;
  for (const GoldenWire& wire : golden_.wire) {
    const GoldenPrompt& prompt = golden_.prompts[wire.prompt];
    if (prompt.prompt.size() > 80) continue;
    Chain rounded = chain(wire.splits, HiddenType::kBfloat16);
    std::span<const TokenId> feed = prompt.prompt;
    for (std::size_t i = 0; i < wire.completion.size(); ++i) {
      const SampledToken token = rounded.next(feed);
      if (wire.margins[i] >= kNearTie) {
        ASSERT_EQ(token.id, wire.completion[i]) << "prompt " << wire.prompt << " token " << i;
      }
      feed = std::span(wire.completion).subspan(i, 1);
    }
    if (wire.prompt > 2) continue;
    std::string name = std::to_string(wire.prompt) + ".wire.";
    for (std::size_t i = 0; i < wire.splits.size(); ++i)
      name += (i == 0 ? "" : "+") + std::to_string(wire.splits[i]);
    Chain once = chain(wire.splits, HiddenType::kBfloat16);
    const std::vector<float> logits = once.logits(prompt.prompt);
    EXPECT_LE(max_difference(std::span(logits).last(shard_->profile().vocab), golden_.tensor(name)), 2e-2)
        << name;
    seen.insert(wire.splits);
  }
  EXPECT_FALSE(seen.empty());
}

TEST_P(GoldenModel, HiddenStatesOfEveryLayerAreThoseOfTransformers) {
  const std::vector<float> states = golden_.tensor("1.hidden");
  const std::vector<TokenId>& ids = golden_.prompts[1].prompt;
  const std::size_t size = ids.size() * shard_->profile().hidden;
  const std::uint32_t layers = shard_->profile().layer_count();
  for (std::uint32_t end = 0; end < layers; ++end) {
    Segment segment;
    segment.cache = *engine_->open_cache(shard_, {0, end}, limit());
    segment.ids = ids;
    segment.rows = static_cast<std::uint32_t>(ids.size());
    segment.out_type = HiddenType::kFloat32;
    const auto results = engine_->step(shard_, {0, end}, std::span(&segment, 1));
    ASSERT_TRUE(results.ok() && (*results)[0].status.ok());
    const std::string& bytes = (*results)[0].hidden;
    ASSERT_EQ(bytes.size(), size * sizeof(float));
    const std::span actual(reinterpret_cast<const float*>(bytes.data()), size);
    EXPECT_LE(nmse(actual, std::span(states).subspan(end * size, size)), kMaxNmse) << "before layer " << end;
    engine_->close_cache(segment.cache);
  }
}

TEST_P(GoldenModel, Bfloat16ComputeIsAsGoodAsThatOfTransformers) {
  const auto engine = cpu_engine(ComputeType::kBfloat16);
  const auto shard = load_all(*engine, golden_folder(GetParam()));
  double worst = 0;
  for (const std::size_t index : fitting()) {
    Chain low(*engine, shard, {}, HiddenType::kBfloat16, limit());
    const std::vector<float> logits = low.logits(golden_.prompts[index].all());
    worst =
        std::max(worst, nmse(golden_rows(index, logits), golden_.tensor(std::to_string(index) + ".logits")));
  }
  EXPECT_LE(worst, 1.5 * golden_.bf16_nmse);
  RecordProperty("bf16_nmse", std::to_string(worst));
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenModel,
                         ::testing::Values("gpt2", "qwen3", "tiny-gpt2", "tiny-llama", "tiny-llama-4x",
                                           "tiny-llama-linear", "tiny-llama-yarn", "tiny-llama-dynamic",
                                           "tiny-mistral", "tiny-qwen2", "tiny-qwen2-window", "tiny-qwen3"),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace mesh::engine::testing
