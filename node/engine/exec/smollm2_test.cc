#include <gtest/gtest.h>

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

INSTANTIATE_TEST_SUITE_P(Compute, SmolLm2, ::testing::Values(ComputeType::kFloat32, ComputeType::kBfloat16));

}  // namespace
}  // namespace mesh::engine::testing
