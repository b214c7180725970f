#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/sim/world.h"

namespace mesh::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "; ";
  return text;
}

/// MESH_SIM_SEED=N runs one seed only.
std::pair<std::uint64_t, std::uint64_t> seeds(std::uint64_t count) {
  if (const char* one = std::getenv("MESH_SIM_SEED")) {
    const std::uint64_t seed = std::strtoull(one, nullptr, 10);
    return {seed, seed + 1};
  }
  return {1, count + 1};
}

std::string replay(std::uint64_t seed) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  return "replay: MESH_SIM_SEED=" + std::to_string(seed) +
         " sim_test --gtest_filter=" + test->test_suite_name() + "." + test->name();
}

TEST(Simulator, WithoutFaultsEverySessionAnswersWithoutAFailover) {
  Plan plan;
  plan.seed = 3;
  plan.sessions = 4;
  plan.head_options.head_url = "sim://tracker";
  World world(plan);
  world.run();
  EXPECT_EQ(joined(world.violations()), "");
  EXPECT_EQ(world.errors(), 0u);
  EXPECT_EQ(world.head_stats().failovers, 0u);
}

TEST(Simulator, RightTextOrAClearErrorWhateverTheNetworkAndTheNodesDo) {
  const auto [first, last] = seeds(300);
  std::uint64_t sessions = 0, errors = 0, failovers = 0, events = 0;
  for (std::uint64_t seed = first; seed < last; ++seed) {
    World world(Plan::random(seed));
    world.run();
    EXPECT_EQ(joined(world.violations()), "") << replay(seed);
    sessions += world.results().size();
    errors += world.errors();
    failovers += world.head_stats().failovers;
    events += world.events();
    for (const SessionResult& r : world.results()) {
      if (!r.status.ok() && last - first == 1) std::cout << r.status << "\n";
    }
  }
  std::cout << sessions << " sessions, " << errors << " errors, " << failovers << " failovers, " << events
            << " events\n";
  EXPECT_LE(errors * 20, sessions) << "more than one session in twenty ended with an error";
}

}  // namespace
}  // namespace mesh::sim
