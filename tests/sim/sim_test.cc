#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

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

/// MESH_SIM_SEED=N runs one seed only, MESH_SIM_SEEDS=N the first N.
std::pair<std::uint64_t, std::uint64_t> seeds(std::uint64_t count) {
  if (const char* one = std::getenv("MESH_SIM_SEED")) {
    const std::uint64_t seed = std::strtoull(one, nullptr, 10);
    return {seed, seed + 1};
  }
  if (const char* many = std::getenv("MESH_SIM_SEEDS")) count = std::strtoull(many, nullptr, 10);
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

/// Nodes join, load and drop as the real registry, planner, desk and agents decide, and an old tracker
/// interferes.
Plan planned(std::uint64_t seed) {
  Plan plan = Plan::random(seed);
  plan.planned = true;
  plan.stale_directives = 0.3;
  return plan;
}

TEST(Simulator, WithRegistryPlannerAndAgentsTooTheTextIsRight) {
  const auto [first, last] = seeds(60);
  std::uint64_t sessions = 0, errors = 0, failovers = 0, stale = 0, early = 0;
  for (std::uint64_t seed = first; seed < last; ++seed) {
    World world(planned(seed));
    world.run();
    EXPECT_EQ(joined(world.violations()), "") << replay(seed);
    sessions += world.results().size();
    errors += world.errors();
    failovers += world.head_stats().failovers;
    stale += world.stale_directives();
    early += world.early_hops();
  }
  std::cout << sessions << " sessions, " << errors << " errors, " << failovers << " failovers, " << stale
            << " directives of old epochs, " << early << " hops on shards that were being loaded\n";
  EXPECT_TRUE((stale > 0 && early > 0) || last - first == 1);
  EXPECT_LE(errors * 20, sessions);
}

TEST(Simulator, WithPromptsKeptAtEveryHopTheTextIsRight) {
  const auto [first, last] = seeds(100);
  std::uint64_t sessions = 0, errors = 0, failovers = 0, hits = 0, evictions = 0;
  for (std::uint64_t seed = first; seed < last; ++seed) {
    World world(Plan::repeating(seed));
    world.run();
    EXPECT_EQ(joined(world.violations()), "") << replay(seed);
    sessions += world.results().size();
    errors += world.errors();
    failovers += world.head_stats().failovers;
    hits += world.hit_blocks();
    evictions += world.evictions();
  }
  std::cout << sessions << " sessions, " << errors << " errors, " << failovers << " failovers, " << hits
            << " blocks hit, " << evictions << " let go of\n";
  EXPECT_TRUE((hits > sessions && 2 * evictions > sessions) || last - first == 1)
      << "the prompts are hardly kept";
  EXPECT_LE(errors * 10, sessions);
}

TEST(Simulator, OnNodesWithMemoryForFewSessionsTheTextIsRight) {
  const auto [first, last] = seeds(60);
  std::uint64_t sessions = 0, errors = 0, moves = 0, refills = 0;
  for (std::uint64_t seed = first; seed < last; ++seed) {
    World world(Plan::pressed(seed));
    world.run();
    EXPECT_EQ(joined(world.violations()), "") << replay(seed);
    sessions += world.results().size();
    for (const SessionResult& r : world.results()) {
      errors += !r.status.ok() && r.status.code() != StatusCode::kResourceExhausted;
    }
    moves += world.moves();
    refills += world.head_stats().refills;
  }
  std::cout << sessions << " sessions, " << errors << " errors, " << moves << " moves, " << refills
            << " caches filled again\n";
  EXPECT_TRUE((moves > sessions && refills > 0) || last - first == 1) << "there is hardly any pressure";
  EXPECT_LE(errors * 10, sessions);
}

TEST(Simulator, ARepeatedPromptIsNotComputedAgain) {
  Plan plan;
  plan.seed = 11;
  plan.nodes = 2;
  plan.sessions = 2;
  plan.repeats = 1e-9;  // keys are offered; the prompts are given here
  plan.hop_options.prefix_bytes = 1 << 20;
  plan.head_options.head_url = "sim://tracker";
  World world(plan);
  std::vector<TokenId> prompt;
  for (TokenId i = 0; i < 1000; ++i) prompt.push_back(i * 31 % 900);
  world.start_session(prompt, 8, 128, false, 0);
  world.timeline().run(world.timeline().now() + seconds(3));
  EXPECT_EQ(world.hit_blocks(), 0u);
  world.start_session(prompt, 8, 128, false, 0);
  world.timeline().run(world.timeline().now() + seconds(3));
  EXPECT_EQ(world.hit_blocks(), 3u * 7) << "seven full blocks at three hops";
  world.start_session(prompt, 8, 128, false, 1);
  world.run();
  EXPECT_EQ(world.hit_blocks(), 3u * 7) << "another principal";
  EXPECT_EQ(joined(world.violations()), "");
  EXPECT_EQ(world.errors(), 0u);
}

TEST(Simulator, ANodeRestartedAtAnyPointOfItsWorkLosesNothing) {
  for (int point = 0; point <= static_cast<int>(CrashPoint::kResultSent); ++point) {
    for (const std::size_t stage : {0u, 1u}) {
      for (const int occurrence : {1, 2, 7, 25}) {
        Plan plan;
        plan.seed = 5;
        plan.nodes = 2;
        plan.sessions = 1;
        plan.head_options.head_url = "sim://tracker";
        World world(plan);
        world.node(stage).crash_at(static_cast<CrashPoint>(point), occurrence, milliseconds(300));
        world.start_session(300, 40, 64, false);
        world.run();
        const std::string where = "point " + std::to_string(point) + ", node " + std::to_string(stage) +
                                  ", time " + std::to_string(occurrence);
        EXPECT_EQ(joined(world.violations()), "") << where;
        EXPECT_EQ(world.errors(), 0u) << where << ": " << world.results()[0].status;
        EXPECT_EQ(world.node(stage).crashes(), 1) << where;
      }
    }
  }
}

/// The first seed of `most` in which something broke, or (when `errors` count) a session ended with an error;
/// else 0.
std::uint64_t first_found(const pipeline::HopFaults& faults, std::uint64_t most, bool errors = false) {
  for (std::uint64_t seed = 1; seed <= most; ++seed) {
    Plan plan = Plan::random(seed);
    plan.hop_faults = faults;
    World world(plan);
    world.run();
    if (!world.violations().empty() || (errors && world.errors() > 0)) return seed;
  }
  return 0;
}

std::uint64_t first_found_repeating(const std::function<void(Plan&)>& plant) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Plan plan = Plan::repeating(seed);
    plant(plan);
    World world(plan);
    world.run();
    if (!world.violations().empty()) return seed;
  }
  return 0;
}

TEST(PlantedBug, BlockOfferedAfterItWasLetGoOfIsFound) {
  EXPECT_NE(first_found_repeating([](Plan& plan) { plan.hop_faults.stale_blocks = true; }), 0u);
}

TEST(PlantedBug, KeptBlockBesideTheRightOneIsFound) {
  EXPECT_NE(first_found_repeating([](Plan& plan) { plan.hop_faults.block_before = true; }), 0u);
}

TEST(PlantedBug, OneSaltForTwoPrincipalsIsFound) {
  EXPECT_NE(first_found_repeating([](Plan& plan) { plan.one_salt = true; }), 0u);
}

TEST(PlantedBug, GapAcceptedIsFound) {
  EXPECT_NE(first_found({.accept_gaps = true}, 300), 0u);
}

TEST(PlantedBug, DuplicateAppliedIsFound) {
  EXPECT_NE(first_found({.apply_duplicates = true}, 300), 0u);
}

TEST(PlantedBug, MissingGenerationCheckIsFound) {
  EXPECT_NE(first_found({.ignore_generation = true}, 300), 0u);
}

TEST(PlantedBug, OldEpochAcceptedIsFound) {
  std::uint64_t found = 0;
  for (std::uint64_t seed = 1; seed <= 60 && found == 0; ++seed) {
    Plan plan = planned(seed);
    plan.agent_faults.accept_old_epochs = true;
    World world(plan);
    world.run();
    if (!world.violations().empty()) found = seed;
  }
  EXPECT_NE(found, 0u);
}

TEST(PlantedBug, LostTokenMessageIsFound) {
  const std::uint64_t seed = first_found({.forget_tokens = true}, 300, true);
  ASSERT_NE(seed, 0u);
  EXPECT_EQ(first_found({}, seed, true), 0u) << "the same seeds without the bug have no error";
}

}  // namespace
}  // namespace mesh::sim
