#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/ids.h"

namespace mesh::tracker {

/// One contiguous run of layers of one identity at one node.
struct Copy {
  NodeId node;
  LayerRange layers;

  friend auto operator<=>(const Copy&, const Copy&) = default;
};

/// Who can run which layers of one identity. `held` counts what a stored or silent node is believed to hold:
/// it takes no session, but nobody else is told to load it yet.
class Coverage {
 public:
  explicit Coverage(std::uint32_t layer_count) : layer_count_(layer_count) {}

  void add_ready(const Copy& copy) { ready_.push_back(copy); }
  void add_loading(const Copy& copy) { loading_.push_back(copy); }
  void add_held(const Copy& copy) { held_.push_back(copy); }

  std::uint32_t layer_count() const { return layer_count_; }
  const std::vector<Copy>& ready() const { return ready_; }
  const std::vector<Copy>& loading() const { return loading_; }
  const std::vector<Copy>& held() const { return held_; }

  /// Nodes that have each layer, [layer_count]: one with several shards counts once, and what it has ready is
  /// not loading.
  std::vector<std::uint32_t> ready_counts() const { return counts(by_node(ready_)); }
  std::vector<std::uint32_t> loading_counts() const;
  /// Every layer has a ready copy.
  bool complete() const { return gaps().empty(); }
  /// Maximal runs of layers without a ready copy, ascending.
  std::vector<LayerRange> gaps() const;

 private:
  using ByNode = std::map<NodeId, std::vector<bool>>;  ///< which layers
  ByNode by_node(const std::vector<Copy>& copies) const;
  std::vector<std::uint32_t> counts(const ByNode& nodes) const;

  std::uint32_t layer_count_;
  std::vector<Copy> ready_;
  std::vector<Copy> loading_;
  std::vector<Copy> held_;
};

/// Maximal runs of zeros in `counts`, ascending.
std::vector<LayerRange> runs_of_zero(const std::vector<std::uint32_t>& counts);

}  // namespace mesh::tracker
