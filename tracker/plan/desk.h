#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/wire/control.h"
#include "tracker/plan/plan.h"
#include "tracker/registry/registry.h"

namespace mesh::tracker {

/// One line for the audit log.
struct DirectiveEvent {
  wire::Directive directive;
  std::string outcome;  ///< "issued", "done", "failed: …", "refused: …", "withdrawn"
};

/// Turns plans into directives and follows each until it ended. It works by levels, not by edges: what is to
/// be ordered follows from the target and from what nodes report now, so a lost message, a restart of either
/// side or a failed load needs no special case. Pure: time is an argument; one thread at a time.
class DirectiveDesk {
 public:
  struct Options {
    PlanOptions plan;
    Duration expires = std::chrono::seconds(60);  ///< a directive that a reply brings must begin before
    Duration refusal_first =
        std::chrono::seconds(30);  ///< how long a failed load is not ordered again; doubles
    Duration refusal_last = std::chrono::minutes(10);
  };
  /// `models` in the order of their importance. `seed` makes the directives' ids.
  DirectiveDesk(std::vector<ModelProfile> models, HeadLayers head, Options options, std::uint64_t seed);

  const std::vector<ModelProfile>& models() const { return models_; }
  const HeadLayers& head_layers() const { return head_; }
  const Plan& plan() const { return plan_; }

  /// A node joined. A new start of its program forgets what was ordered from the last one.
  void joined(const NodeId& node, std::uint64_t start);
  /// What a heartbeat says of directives.
  void acknowledged(const NodeId& node, const std::vector<wire::DirectiveStatus>& statuses, TimePoint now);

  /// Plans anew if anything that matters changed. True: the target differs, and adopt() must follow with an
  /// epoch above all that were used, already stored. While the registry suspects itself nothing is planned.
  bool consider(const Registry& registry, TimePoint now);
  void adopt(Epoch epoch);

  /// What the reply to this node's heartbeat carries: new directives and those that it has not acknowledged.
  std::vector<wire::Directive> due(const Registry& registry, const NodeId& node, TimePoint now);

  /// Loads that failed at the node and are not ordered again for now, by model: the reason.
  std::map<ModelIdentity, std::string> failures(const NodeId& node) const;
  std::vector<DirectiveEvent> take_events();

 private:
  struct Outstanding {
    wire::Directive directive;
    bool acknowledged = false;
  };
  struct Failure {
    TimePoint until{};
    bool active = true;  ///< `until` has not passed
    std::uint32_t count = 0;
    std::string reason;
  };

  std::vector<PlanNode> view(const Registry& registry) const;
  void add_outstanding(PlanNode& node) const;
  bool is_outstanding(const Step& step) const;
  void end_failures(TimePoint now);
  const std::vector<Step>& steps_for(const Registry& registry, const NodeId& node, TimePoint now);
  void note_failure(const NodeId& node, const wire::Directive& directive, const std::string& reason,
                    TimePoint now);
  wire::DirectiveId next_id();

  std::vector<ModelProfile> models_;
  HeadLayers head_;
  Options options_;
  std::uint64_t random_;
  Plan plan_;
  Plan proposed_;
  std::vector<PlanNode> planned_for_;  ///< the view that plan_ was made from
  bool planned_ = false;
  /// What view() depends on: the registry's version and how often failures or orders changed here.
  using Inputs = std::pair<std::uint64_t, std::uint64_t>;
  std::uint64_t changes_ = 0;
  std::optional<Inputs> considered_;
  std::optional<Inputs> stepped_;
  std::map<NodeId, std::vector<Step>> steps_;  ///< of `stepped_`, by node
  std::map<NodeId, std::uint64_t> starts_;
  std::map<NodeId, std::vector<Outstanding>> outstanding_;
  std::map<std::pair<NodeId, ModelIdentity>, Failure> failures_;
  std::vector<DirectiveEvent> events_;
};

}  // namespace mesh::tracker
