#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tracker/plan/plan.h"

namespace mesh::tracker {

/// A target under construction: one range per node and model, the memory that it takes, the copies that it
/// gives. Nodes and models are indices into the planner's inputs, which must outlive the board.
class Board {
 public:
  /// Begins with what the nodes hold: of each identity the longest shard, ready or loading. Nodes that leave
  /// or are silent hold nothing here; a silent node's layers count as a copy (copies()), not as coverage
  /// (covered()).
  Board(const std::vector<ModelProfile>& models, const HeadLayers& head, const std::vector<PlanNode>& nodes,
        const PlanOptions& options);

  const std::vector<ModelProfile>& models() const { return *models_; }
  const std::vector<PlanNode>& nodes() const { return *nodes_; }
  const PlanOptions& options() const { return *options_; }

  const LayerRange& range(std::size_t node, std::size_t model) const { return ranges_[node][model]; }
  void set_range(std::size_t node, std::size_t model, LayerRange range);

  /// Whether the node may be told to hold layers of the model at all.
  bool eligible(std::size_t node, std::size_t model) const;
  /// Whether `range` may be the node's range of the model: allowed borders, and room for it beside the node's
  /// other shards and one layer that loads.
  bool fits(std::size_t node, std::size_t model, LayerRange range) const;
  /// Bytes that the node's ranges leave free, the range of `without` not counted.
  std::uint64_t free_bytes(std::size_t node, std::size_t without) const;
  std::uint64_t free_bytes(std::size_t node) const { return free_bytes(node, models_->size()); }

  /// Layers that the head runs in every session; copies of them elsewhere are of no use.
  std::uint32_t head_layers(std::size_t model) const { return head_layers_[model]; }
  /// Nodes (and the head) that have the layer in the target.
  std::uint32_t covered(std::size_t model, std::uint32_t layer) const { return covered_[model][layer]; }
  /// Summed speeds of these and of silent nodes.
  double copies(std::size_t model, std::uint32_t layer) const { return copies_[model][layer]; }
  std::uint32_t copy_count(std::size_t model, std::uint32_t layer) const { return counts_[model][layer]; }
  std::vector<LayerRange> gaps(std::size_t model) const;
  /// Every layer of the node's range has another copy in the target.
  bool redundant(std::size_t node, std::size_t model) const;

  std::vector<Assignment> target() const;

 private:
  /// shard_bytes() from prefix sums: boards weigh many ranges.
  std::uint64_t bytes(std::size_t model, LayerRange range) const;
  void count(std::size_t model, LayerRange range, double speed, int sign, bool covers);

  const std::vector<ModelProfile>* models_;
  const std::vector<PlanNode>* nodes_;
  const PlanOptions* options_;
  std::vector<std::uint32_t> head_layers_;
  std::vector<std::vector<std::uint64_t>> sums_;     ///< [model][i]: weights and KV of layers [0, i)
  std::vector<std::uint64_t> widest_;                ///< [model]: loading_bytes() of the whole
  std::vector<std::vector<LayerRange>> ranges_;      ///< [node][model]
  std::vector<std::vector<std::uint32_t>> covered_;  ///< [model][layer]
  std::vector<std::vector<std::uint32_t>> counts_;   ///< [model][layer], silent copies too
  std::vector<std::vector<double>> copies_;          ///< [model][layer]
};

enum class Exchanges { kAllowed, kForbidden };

/// Fills gaps of one model by growing ranges and by nodes that have none of it; where none has room and
/// exchanges are allowed, by nodes whose shards are redundant in the target and go. Returns false when a gap
/// is left.
bool fill_gaps(Board& board, std::size_t model, Exchanges exchanges);

/// Lays one model out anew over nodes in the order of their present ranges, with the fewest bytes loaded;
/// false (and the board unchanged) when no such chain covers all.
bool relay_chain(Board& board, std::size_t model);

/// Further copies where the weakest layers are, as memory allows.
void add_copies(Board& board);

}  // namespace mesh::tracker
