#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "common/json/view.h"
#include "node/engine/testing/golden.h"

// A real model: SmolLM2-135M-Instruct as deploy/smollm2.py writes it; MESHNET_SMOLLM2 names its folder.
namespace mesh::engine::testing {
namespace {

struct Answer {
  std::vector<TokenId> prompt, completion;
  std::vector<double> margins;
};

std::vector<Answer> answers() {
  std::ifstream file(std::string(MESH_SOURCE_DIR) + "/tests/golden/smollm2/reference.json");
  std::stringstream text;
  text << file.rdbuf();
  const auto value = json::parse(text.str());
  std::vector<Answer> list;
  const auto items = json::View(*value).elements();
  if (!items.ok()) return list;
  for (const json::View& item : *items) {
    list.push_back({*item.get_list<TokenId>("prompt_ids"), *item.get_list<TokenId>("completion_ids"),
                    *item.get_list<double>("margin")});
  }
  return list;
}

class SmolLm2 : public ::testing::TestWithParam<ComputeType> {};

TEST_P(SmolLm2, AnswersAreThoseOfTransformersWhenForcedAlongThem) {
  const char* folder = std::getenv("MESHNET_SMOLLM2");
  if (folder == nullptr) GTEST_SKIP() << "MESHNET_SMOLLM2 is not set";
  const double near_tie = GetParam() == ComputeType::kFloat32 ? 0.02 : 0.25;
  const auto engine = cpu_engine(GetParam());
  const auto shard = load_all(*engine, folder);
  const std::vector<Answer> list = answers();
  ASSERT_FALSE(list.empty());
  for (const Answer& answer : list) {
    Chain chain(*engine, shard, {10, 20}, HiddenType::kFloat32, 1024);
    std::span<const TokenId> feed = answer.prompt;
    for (std::size_t i = 0; i < answer.completion.size(); ++i) {
      const TokenId id = chain.next(feed).id;
      if (answer.margins[i] >= near_tie) {
        ASSERT_EQ(id, answer.completion[i]) << "token " << i;
      }
      feed = std::span(answer.completion).subspan(i, 1);
    }
  }
}

struct RankedRow {
  std::vector<TokenId> ids;  // the likeliest
  std::vector<double> logprobs;
};
struct QuantisedText {
  std::vector<TokenId> ids;
  std::vector<RankedRow> rows;
};

std::vector<QuantisedText> quantised_texts(const std::string& variant) {
  std::ifstream file(std::string(MESH_SOURCE_DIR) + "/tests/golden/smollm2/quantised.json");
  std::stringstream text;
  text << file.rdbuf();
  const auto value =
      json::parse(text.str(), {.max_bytes = 4u << 20, .max_depth = 32, .max_values = 1u << 20});
  const auto elements = [](const json::View& view, const char* key) { return *view.field(key)->elements(); };
  const std::vector<json::View> texts = elements(*json::View(*value).field(variant), "texts");
  std::vector<QuantisedText> list;
  for (const json::View& item : texts) {
    QuantisedText made{*item.get_list<TokenId>("ids"), {}};
    const std::vector<json::View> ids = elements(item, "top_ids"), logprobs = elements(item, "top_logprobs");
    for (std::size_t row = 0; row < ids.size(); ++row) {
      made.rows.emplace_back();
      const std::vector<json::View> best = *ids[row].elements(), values = *logprobs.at(row).elements();
      for (const json::View& id : best) made.rows.back().ids.push_back(*id.as<TokenId>());
      for (const json::View& one : values) made.rows.back().logprobs.push_back(*one.as<double>());
    }
    list.push_back(std::move(made));
  }
  return list;
}

/// KL(expected ‖ actual) over the row's likeliest ids and all others as one.
double divergence(const RankedRow& expected, const float* logits, std::size_t vocab) {
  double sum = 0;
  for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(double{logits[i]});
  double p_rest = 1, q_rest = 1, total = 0;
  for (std::size_t i = 0; i < expected.ids.size(); ++i) {
    const double p = std::exp(expected.logprobs[i]);
    const double q = logits[expected.ids[i]] - std::log(sum);
    total += p * (expected.logprobs[i] - q);
    p_rest -= p;
    q_rest -= std::exp(q);
  }
  return total + (p_rest > 1e-6 ? p_rest * std::log(p_rest / std::max(q_rest, 1e-12)) : 0);
}

TEST_P(SmolLm2, QuantisedItIsWhatTransformersMakesOfTheSameWeights) {
  const char* folder = std::getenv("MESHNET_SMOLLM2");
  if (folder == nullptr) GTEST_SKIP() << "MESHNET_SMOLLM2 is not set";
  for (const auto& [name, quantization] :
       {std::pair("int8", Quantization::kInt8), std::pair("nf4", Quantization::kNf4),
        std::pair("fp8", Quantization::kFp8)}) {
    const auto engine = cpu_engine(GetParam());
    const auto shard = load_all(*engine, folder, quantization);
    const std::size_t vocab = shard->profile().vocab;
    double total = 0;
    std::size_t rows = 0, equal = 0;
    for (const QuantisedText& text : quantised_texts(name)) {
      Chain chain(*engine, shard, {10, 20}, HiddenType::kFloat32, 1024);
      const std::vector<float> logits = chain.logits(text.ids);
      ASSERT_EQ(text.rows.size() * vocab, logits.size());
      for (std::size_t row = 0; row < text.rows.size(); ++row) {
        const float* from = logits.data() + row * vocab;
        total += divergence(text.rows[row], from, vocab);
        equal += std::max_element(from, from + vocab) - from == text.rows[row].ids[0] ? 1 : 0;
        ++rows;
      }
    }
    ASSERT_GT(rows, 50u);
    EXPECT_LE(total / static_cast<double>(rows), 0.002) << name;
    EXPECT_GE(static_cast<double>(equal), 0.97 * static_cast<double>(rows)) << name;
    RecordProperty(std::string("kl_") + name, std::to_string(total / static_cast<double>(rows)));
    std::printf("%s: KL from transformers with the same weights %.2e, %zu of %zu arg-maxes equal\n", name,
                total / static_cast<double>(rows), equal, rows);
  }
}

INSTANTIATE_TEST_SUITE_P(Compute, SmolLm2, ::testing::Values(ComputeType::kFloat32, ComputeType::kBfloat16));

}  // namespace
}  // namespace mesh::engine::testing
