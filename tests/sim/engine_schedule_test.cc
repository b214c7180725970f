#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>

#include "node/engine/testing/golden.h"
#include "tests/sim/schedule.h"

// The schedules of schedule_test.cc on the real engine with a tiny model. MESH_SIM_SEED=N runs one seed.
namespace mesh::sim {
namespace {

using engine::testing::golden_folder;

constexpr const char* kModel = "tiny-llama";
constexpr LayerRange kAll{0, 6};

std::unique_ptr<engine::Engine> make_engine(std::uint64_t memory, std::uint64_t host) {
  engine::EngineOptions options;
  options.device = engine::Device::kCpu;
  options.compute = engine::ComputeType::kFloat32;
  options.threads = 1;
  options.memory_bytes = memory;
  options.spill_bytes = host;
  return *engine::Engine::create(options);
}

/// Answers of an engine that runs one session at a time and has memory for all of it.
class Alone {
 public:
  std::vector<TokenId> answer(const std::vector<TokenId>& prompt, std::size_t count) {
    engine::testing::Chain chain(*engine_, shard_, {}, engine::HiddenType::kFloat32,
                                 static_cast<Position>(prompt.size() + count));
    return engine::testing::generate(chain, prompt, count);
  }
  engine::MemoryUse memory() const { return engine_->memory(); }
  const engine::ModelProfile& profile() const { return shard_->profile(); }

 private:
  const std::unique_ptr<engine::Engine> engine_ = make_engine(std::uint64_t{256} << 20, 0);
  const std::shared_ptr<const engine::Shard> shard_ =
      engine::testing::load_all(*engine_, golden_folder(kModel));
};

SchedulePlan small_plan(std::uint64_t seed) {
  SchedulePlan plan = SchedulePlan::random(seed);
  plan.requests = 4 + plan.requests / 4;
  plan.longest_prompt = 300;
  plan.most_tokens = 40;
  plan.failures = 0;
  // Three blocks are the most that a request takes.
  plan.device_blocks = 3 + seed % 3;
  plan.host_blocks = seed % 5 == 0 ? 0 : 9 + seed % 13;
  plan.arrivals_last = std::chrono::milliseconds(200);
  if (seed % 5 == 0) {  // prompts return, and there is room to keep some
    plan.device_blocks = 8;
    plan.prefix_blocks = 4;
    plan.repeats = 0.9;
    plan.arrivals_last = std::chrono::seconds(2);
  }
  return plan;
}

void run_schedules(std::uint64_t count) {
  Alone alone;
  const engine::MemoryUse fixed = alone.memory();
  const std::uint64_t token = alone.profile().kv_bytes_per_token(kAll, engine::WeightFormat::kFloat32);
  const ScheduleModel model{
      kAll.end, token, static_cast<TokenId>(alone.profile().vocab),
      [&](const std::vector<TokenId>& prompt, std::size_t tokens) { return alone.answer(prompt, tokens); }};
  std::uint64_t first = 1;
  if (const char* one = std::getenv("MESH_SIM_SEED")) {
    first = std::strtoull(one, nullptr, 10);
    count = 1;
  }
  std::uint64_t spills = 0, drops = 0, hits = 0, answers = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const SchedulePlan plan = small_plan(seed);
    const auto engine = make_engine(fixed.weight_bytes + fixed.working_bytes +
                                        plan.device_blocks * 128 * token + (std::uint64_t{64} << 20),
                                    plan.host_blocks * 128 * token);
    const auto shard = engine::testing::load_all(*engine, golden_folder(kModel));
    Schedule schedule(plan, model, *engine, shard);
    schedule.run();
    std::string violations;
    for (const std::string& one : schedule.violations()) violations += one + "; ";
    EXPECT_EQ(violations, "") << "replay: MESH_SIM_SEED=" << seed
                              << " schedule_test --gtest_filter=EngineSchedules.*";
    spills += schedule.totals().spills;
    drops += schedule.totals().drops;
    hits += schedule.totals().prefix_hits;
    answers += schedule.totals().finished;
  }
  std::cout << answers << " answers, " << spills << " spills, " << drops << " drops, " << hits
            << " tokens hit\n";
  EXPECT_TRUE((spills > count && hits > 0) || count == 1);
}

TEST(EngineSchedules, EachTextIsThatOfItsPromptAlone) {
  run_schedules(20);
}

TEST(LongEngineSchedules, EachTextIsThatOfItsPromptAlone) {
  run_schedules(200);
}

}  // namespace
}  // namespace mesh::sim
