#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/sim/route_source.h"
#include "tests/sim/sim_agent.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/sim_tracker.h"
#include "tracker/head/head_table.h"

namespace mesh::sim {

inline constexpr std::string_view kHeadUrl = "sim://tracker";

struct Plan {
  std::uint64_t seed = 0;
  std::size_t nodes = 3;
  std::uint32_t layers = 8;
  std::uint32_t head_layers = 1;
  std::size_t sessions = 3;
  NetworkFaults network;
  double restarts_per_minute = 0;  ///< of each node, while faults last
  double freezes_per_minute = 0;
  double step_failures_per_minute = 0;
  double cuts_per_minute = 0;  ///< one-way, of each node towards another or the tracker
  double cancels = 0;          ///< share of sessions whose client leaves
  Duration faults_last = std::chrono::seconds(20);
  bool planned = false;  ///< nodes join, load and drop as registry and planner say; else fixed shards
  double stale_directives = 0;
  /// Share of sessions whose prompt begins as that of one before, asked by one of two principals.
  double repeats = 0;
  std::chrono::nanoseconds copy_time_per_byte{1};  ///< to and from a node's host memory
  bool one_salt = false;  ///< planted: both principals' keys are made with the same salt
  AgentFaults agent_faults;
  pipeline::HopOptions hop_options;
  pipeline::HopFaults hop_faults;
  head::HeadOptions head_options;

  /// 3–6 nodes and every kind of fault, all drawn from the seed.
  static Plan random(std::uint64_t seed);
  /// The same with prompts kept at every hop, of which many return; memory for few of them.
  static Plan repeating(std::uint64_t seed);
  /// The same on nodes with memory for few sessions at once and host memory for more.
  static Plan pressed(std::uint64_t seed);
};

struct SessionResult {
  std::vector<TokenId> expected;
  std::vector<TokenId> text;
  bool cancelled = false;
  bool finished = false;
  Status status;
};

/// Tracker, nodes and clients on one timeline.
class World {
 public:
  explicit World(Plan plan);

  /// Runs all sessions to their ends, then until every lease is over.
  void run();
  /// What broke: wrong text, a session that never ended, state that was left behind, a broken rule. Empty:
  /// all well.
  const std::vector<std::string>& violations() const { return violations_; }
  const std::vector<SessionResult>& results() const { return results_; }
  std::size_t errors() const;
  std::uint64_t stale_directives() const;
  std::uint64_t early_hops() const { return tracker_ == nullptr ? 0 : tracker_->early_hops(); }
  head::HeadStats head_stats() const { return head_->stats(); }
  std::uint64_t hit_blocks() const;
  std::uint64_t moves() const;      ///< of caches to host memory and back
  std::uint64_t evictions() const;  ///< of kept blocks, by nodes that were not restarted since
  std::uint64_t events() const { return timeline_.events(); }

  Timeline& timeline() { return timeline_; }
  SimNode& node(std::size_t index) { return *nodes_[index]; }
  std::size_t node_count() const { return nodes_.size(); }
  void crash(std::size_t index, Duration down);
  void start_session(std::size_t prompt, std::uint32_t max_tokens, std::uint32_t chunk, bool cancel);
  /// By `principal`, 0 or 1, whose keys have a salt of their own.
  void start_session(std::vector<TokenId> prompt, std::uint32_t max_tokens, std::uint32_t chunk, bool cancel,
                     int principal);

 private:
  class RandomRoutes;

  void make_nodes();
  void make_fixed_shards();
  void make_control();
  SimAgent::Setup agent_setup(const SimNode& node);
  void plan_sessions();
  std::vector<TokenId> random_prompt(std::size_t tokens);
  void plan_faults();
  void drain_head();
  void carry_out(head::HeadAction& action);
  void open(const head::OpenHop& action);
  void ask(const head::AskCursor& action);
  void renew(const head::RenewLease& action);
  void close(const head::CloseHop& action);
  StatusOr<std::string> handle(const std::string& route, const std::string& body);
  void check();
  void violation(const std::string& what) { violations_.push_back(what); }

  Plan plan_;
  Timeline timeline_;
  Random random_;
  Network network_;
  ModelIdentity identity_;
  std::unique_ptr<SimNode> embedded_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  std::unique_ptr<head::HeadTable> head_;
  std::unique_ptr<RouteSource> routes_;
  SimTracker* tracker_ = nullptr;  ///< routes_, when planned
  std::vector<std::unique_ptr<SimAgent>> agents_;
  std::map<SessionId, std::size_t> index_;
  std::map<SessionId, int> principals_;
  std::vector<std::vector<TokenId>> prompts_;
  std::vector<SessionResult> results_;
  std::vector<std::string> violations_;
  std::optional<TimePoint> armed_;
  bool draining_ = false;
};

}  // namespace mesh::sim
