#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>

#include "tests/sim/block_engine.h"
#include "tests/sim/fake_engine.h"
#include "tests/sim/schedule.h"

// Random schedules of one node's memory: arrivals, lengths, clients that leave, pressure, caches that go to
// host memory or are dropped, prompts that return. MESH_SIM_SEED=N runs one seed.
namespace mesh::sim {
namespace {

/// A share of allocations cannot be had.
class RandomFailures final : public engine::AllocationFaults {
 public:
  RandomFailures(std::uint64_t seed, double share) : random_(seed), share_(share) {}
  Status check(std::uint64_t bytes) override {
    if (!random_.chance(share_)) return absl::OkStatus();
    return error(StatusCode::kResourceExhausted, "no memory for {} bytes", bytes);
  }

 private:
  Random random_;
  const double share_;
};

ScheduleModel hash_model() {
  return {BlockEngine::kLayers, BlockEngine::kTokenBytes, FakeEngine::kVocabulary,
          [](const std::vector<TokenId>& prompt, std::size_t count) {
            return FakeEngine::expected(BlockEngine::kLayers, prompt, count, {});
          }};
}

struct Outcome {
  std::vector<std::string> violations;
  Schedule::Totals totals;
};

Outcome run(const SchedulePlan& plan) {
  RandomFailures failures(plan.seed, plan.failures);
  BlockEngine engine(plan.device_blocks * BlockEngine::kBlockBytes,
                     plan.host_blocks * BlockEngine::kBlockBytes, &failures);
  Outcome outcome;
  {
    Schedule schedule(plan, hash_model(), engine, BlockEngine::shard());
    schedule.run();
    outcome = {schedule.violations(), schedule.totals()};
  }
  outcome.violations.insert(outcome.violations.end(), engine.violations().begin(), engine.violations().end());
  if (engine.memory().cache_bytes > 0) outcome.violations.push_back("blocks outlive the node");
  return outcome;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "; ";
  return text;
}

void run_schedules(std::uint64_t count) {
  std::uint64_t first = 1;
  if (const char* one = std::getenv("MESH_SIM_SEED")) {
    first = std::strtoull(one, nullptr, 10);
    count = 1;
  }
  Schedule::Totals sum;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Outcome outcome = run(SchedulePlan::random(seed));
    EXPECT_EQ(joined(outcome.violations), "")
        << "replay: MESH_SIM_SEED=" << seed << " schedule_test --gtest_filter=Schedules.*";
    const Schedule::Totals& t = outcome.totals;
    sum.finished += t.finished;
    sum.cancelled += t.cancelled;
    sum.errors += t.errors;
    sum.refused_room += t.refused_room;
    sum.spills += t.spills;
    sum.drops += t.drops;
    sum.refills += t.refills;
    sum.prefix_hits += t.prefix_hits;
    sum.failovers += t.failovers;
    sum.longest_gap = std::max(sum.longest_gap, t.longest_gap);
  }
  std::cout << sum.finished << " answers, " << sum.cancelled << " left, " << sum.errors << " errors, "
            << sum.refused_room << " refused for room, " << sum.spills << " spills, " << sum.drops
            << " drops, " << sum.refills << " refills, " << sum.failovers << " failovers, " << sum.prefix_hits
            << " tokens hit, longest gap "
            << std::chrono::duration_cast<std::chrono::milliseconds>(sum.longest_gap).count() << " ms\n";
  if (count == 1) return;
  EXPECT_GT(sum.spills, count);
  EXPECT_GT(sum.drops, count / 10);
  EXPECT_GT(sum.cancelled, count / 2);
  EXPECT_GT(sum.refused_room, count);
  EXPECT_GT(sum.prefix_hits, count);
}

TEST(Schedules, UnderPressureEveryTextIsRightNothingLeaksAndNobodyStarves) {
  run_schedules(100);
}

TEST(LongSchedules, UnderPressureEveryTextIsRightNothingLeaksAndNobodyStarves) {
  run_schedules(1000);
}

TEST(Schedules, TheSameSeedGivesTheSameEvents) {
  for (const std::uint64_t seed : {3u, 7u}) {
    const Outcome first = run(SchedulePlan::random(seed)), second = run(SchedulePlan::random(seed));
    EXPECT_EQ(first.totals.longest_gap, second.totals.longest_gap);
    EXPECT_EQ(first.totals.spills, second.totals.spills);
    EXPECT_EQ(first.totals.prefix_hits, second.totals.prefix_hits);
  }
}

/// The first of 200 seeds that finds the fault; else 0.
std::uint64_t found(const pipeline::HopFaults& faults) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SchedulePlan plan = SchedulePlan::random(seed);
    plan.failures = 0;
    plan.faults = faults;
    if (!run(plan).violations.empty()) return seed;
  }
  return 0;
}

TEST(PlantedRoomBug, CacheThatRunsInHostMemoryIsFound) {
  EXPECT_NE(found({.stay_on_host = true}), 0u);
}

TEST(PlantedRoomBug, HostMemoryThatIsNotGivenBackIsFound) {
  EXPECT_NE(found({.forget_host_bytes = true}), 0u);
}

TEST(PlantedRoomBug, WhoCameLastServedFirstIsFound) {
  // Thirty answers at once where one or two have room: whoever is passed over waits for all others' ends.
  const auto crowded = [](bool latest_first) {
    SchedulePlan plan;
    plan.seed = 1;
    plan.requests = 30;
    plan.most_tokens = 140;
    plan.device_blocks = 6;
    plan.host_blocks = 200;
    plan.arrivals_last = std::chrono::milliseconds(300);
    plan.faults.latest_first = latest_first;
    return joined(run(plan).violations);
  };
  EXPECT_EQ(crowded(false), "");
  EXPECT_NE(crowded(true), "");
}

TEST(PlantedRoomBug, MoreOnTheDeviceThanItHoldsIsFound) {
  EXPECT_NE(found({.crowd_in = true}), 0u);
}

TEST(PlantedRoomBug, KeptBlockBesideTheRightOneIsFound) {
  EXPECT_NE(found({.block_before = true}), 0u);
}

}  // namespace
}  // namespace mesh::sim
