#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "node/engine/engine.h"
#include "node/pipeline/hop_faults.h"
#include "node/pipeline/hop_table.h"
#include "tests/sim/executor_stage.h"
#include "tests/sim/network.h"
#include "tracker/admission/admission_queue.h"
#include "tracker/head/head_table.h"

namespace mesh::sim {

/// Who asks for what, when, and how much memory there is for it. Sizes in tokens; memory in blocks of 128
/// tokens.
struct SchedulePlan {
  std::uint64_t seed = 0;
  std::size_t requests = 8;
  std::uint32_t longest_prompt = 500;
  std::uint32_t most_tokens = 40;
  Duration arrivals_last = std::chrono::seconds(2);
  double cancels = 0;  ///< share of requests whose client leaves
  double repeats = 0;  ///< share of prompts that begin as one before
  std::uint64_t device_blocks = 0, host_blocks = 0, prefix_blocks = 0;
  double copy_bytes_per_second = 1e9;
  double failures = 0;  ///< share of allocations that fail
  std::size_t steps_at_once = 1;
  pipeline::HopFaults faults;

  /// Memory for the largest request up to a few of them, host memory for none up to all.
  static SchedulePlan random(std::uint64_t seed);
};

/// The model that a schedule runs.
struct ScheduleModel {
  std::uint32_t layers = 0;
  std::uint64_t bytes_per_token = 0;
  TokenId vocabulary = 0;
  /// Its answer to a prompt alone.
  std::function<std::vector<TokenId>(const std::vector<TokenId>& prompt, std::size_t count)> alone;
};

/// A tracker's queue and head and a node's hop table and executor, the classes of the programs, on a virtual
/// clock: one node runs the whole model. Requests come, wait for room, stream and leave as the plan says.
class Schedule {
 public:
  struct Totals {
    std::size_t finished = 0, cancelled = 0, errors = 0, refused_room = 0;
    std::uint64_t spills = 0, drops = 0, refills = 0, prefix_hits = 0, failovers = 0;
    Duration longest_gap{};  ///< between two tokens of one answer
  };

  Schedule(const SchedulePlan& plan, ScheduleModel model, engine::Engine& engine,
           std::shared_ptr<const engine::Shard> shard);
  ~Schedule();

  void run();
  /// What broke: wrong text, a request that never ended or waited too long, memory that was left behind or
  /// taken twice. Empty: all well.
  const std::vector<std::string>& violations() const { return violations_; }
  const Totals& totals() const { return totals_; }

 private:
  struct Request {
    std::vector<TokenId> prompt, expected, text;
    std::uint32_t tokens = 0;
    int principal = 0;
    std::optional<SessionId> session;
    bool cancelled = false, finished = false;
    TimePoint last_token{};
  };

  void plan_requests();
  void arrive(std::size_t number);
  void drain();
  void admit();
  /// When a step may be given to the device behind the one that it runs.
  std::optional<TimePoint> ahead_from() const;
  void run_node();
  void carry_out(head::HeadAction& action);
  void finish(const head::Finished& finished);
  void check_memory();
  void check();
  void violation(const std::string& what) { violations_.push_back(what); }
  Request* of(const SessionId& session);

  const SchedulePlan plan_;
  const ScheduleModel model_;
  engine::Engine& engine_;
  Timeline timeline_;
  Random random_;
  std::unique_ptr<pipeline::HopTable> table_;
  head::HeadTable head_;
  tracker::AdmissionQueue queue_;
  ExecutorStage stage_;
  std::vector<Request> requests_;
  std::map<SessionId, std::size_t> sessions_;
  std::set<SessionId> without_room_;
  std::uint64_t last_session_ = 0;
  TimePoint copies_until_{};
  std::size_t steps_run_ = 0;
  TimePoint device_free_;  ///< when the steps that it was given have ended
  bool draining_ = false, again_ = false;
  std::optional<TimePoint> armed_;
  Totals totals_;
  std::vector<std::string> violations_;
};

}  // namespace mesh::sim
