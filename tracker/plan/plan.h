#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "tracker/plan/profile.h"

namespace mesh::tracker {

/// One shard at a node. Shards of one identity may overlap; the layers that they share are in memory once.
struct Holding {
  ModelIdentity model;
  LayerRange layers;
  bool ready = false;  ///< else loading

  friend auto operator<=>(const Holding&, const Holding&) = default;
};

/// A node as the planner sees it.
struct PlanNode {
  NodeId id;
  std::uint64_t memory_bytes = 0;          ///< for all its shards
  std::vector<std::string> model_types;    ///< families that it can build
  std::vector<std::string> quantizations;  ///< that it accepts
  std::vector<std::string> compute_types;  ///< that it accepts
  std::vector<Holding> holdings;
  std::set<ModelIdentity> refuses;  ///< identities that it lately failed to load
  double speed = 1;                 ///< relative; weighs its copies
  bool leaving = false;  ///< draining: its shards are to be covered elsewhere, nothing new goes there
  /// Lost a short while ago: its copies count as copies, never as coverage; nothing goes there.
  bool silent = false;

  friend bool operator==(const PlanNode&, const PlanNode&) = default;
};

/// Layers [0, end) of each identity that the tracker's embedded node runs; fixed before planning.
using HeadLayers = std::map<ModelIdentity, std::uint32_t>;

struct Assignment {
  NodeId node;
  ModelIdentity model;
  LayerRange layers;

  friend auto operator<=>(const Assignment&, const Assignment&) = default;
};

enum class StepKind { kLoad, kDrop };

/// kLoad: a shard with exactly `layers` is to be there; what the node holds of it already is not loaded
/// again. kDrop: the shard with exactly `layers` goes; layers that another shard of the node has stay. So a
/// range grows by a load and then a drop, and is never cut shorter in place.
struct Step {
  StepKind kind = StepKind::kLoad;
  NodeId node;
  ModelIdentity model;
  LayerRange layers;

  friend auto operator<=>(const Step&, const Step&) = default;
};

struct Gap {
  ModelIdentity model;
  LayerRange layers;
  std::string reason;  ///< what is missing, in figures

  friend auto operator<=>(const Gap&, const Gap&) = default;
};

struct Plan {
  Epoch epoch;
  std::vector<Assignment> target;  ///< ascending; one range per node and identity
  std::vector<Step> steps;  ///< in an order in which each fits in memory and none drops a last ready copy
  std::vector<Gap> gaps;    ///< layers that no plan of these nodes covers
  std::vector<std::string> notes;  ///< why a better target was rejected
};

struct PlanOptions {
  MemoryBudget budget;
  std::uint32_t max_copies = 0;       ///< of a layer; 0: as many as memory allows
  std::uint32_t max_node_layers = 0;  ///< of one model at one node; 0: as many as fit
};

/// Coverage first: every gap of every wanted model (in the given order) is filled before any second copy.
/// Sticky: ranges stay or grow at their borders; they move only where that alone closes a gap, and then with
/// the fewest bytes loaded. Deterministic: equal inputs, equal plan. The plan's epoch is `epoch`; the caller
/// stores it before use.
Plan make_plan(const std::vector<ModelProfile>& models, const HeadLayers& head,
               const std::vector<PlanNode>& nodes, Epoch epoch, const PlanOptions& options);

/// Layers of `target` as ordered steps from what `nodes` hold; kFailedPrecondition with the reason when no
/// order fits in memory without dropping a last ready copy.
StatusOr<std::vector<Step>> order_steps(const std::vector<ModelProfile>& models, const HeadLayers& head,
                                        const std::vector<PlanNode>& nodes,
                                        const std::vector<Assignment>& target, const PlanOptions& options);

/// The steps of `target` that may be ordered right now, given what `nodes` hold and load at this moment:
/// loads that fit in free memory; drops of shards that no target needs and whose every layer keeps a ready
/// copy that stays.
std::vector<Step> steps_now(const std::vector<ModelProfile>& models, const HeadLayers& head,
                            const std::vector<PlanNode>& nodes, const std::vector<Assignment>& target,
                            const PlanOptions& options);

/// Largest k ≤ layers() such that the head's [0, k) fits in `memory_bytes` with its budget.
std::uint32_t auto_head_layers(const ModelProfile& model, std::uint64_t memory_bytes,
                               const MemoryBudget& budget);

}  // namespace mesh::tracker
