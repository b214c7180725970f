#include "tracker/registry/coverage.h"

#include <algorithm>

namespace mesh::tracker {

std::vector<LayerRange> runs_of_zero(const std::vector<std::uint32_t>& counts) {
  std::vector<LayerRange> runs;
  for (std::uint32_t layer = 0; layer < counts.size(); ++layer) {
    if (counts[layer] != 0) continue;
    if (runs.empty() || runs.back().end != layer) {
      runs.push_back({layer, layer + 1});
    } else {
      runs.back().end = layer + 1;
    }
  }
  return runs;
}

Coverage::ByNode Coverage::by_node(const std::vector<Copy>& copies) const {
  ByNode nodes;
  for (const Copy& copy : copies) {
    std::vector<bool>& layers = nodes.try_emplace(copy.node, layer_count_, false).first->second;
    for (std::uint32_t layer = copy.layers.begin; layer < std::min(copy.layers.end, layer_count_); ++layer) {
      layers[layer] = true;
    }
  }
  return nodes;
}

std::vector<std::uint32_t> Coverage::counts(const ByNode& nodes) const {
  std::vector<std::uint32_t> result(layer_count_, 0);
  for (const auto& [node, layers] : nodes) {
    for (std::uint32_t layer = 0; layer < layer_count_; ++layer) result[layer] += layers[layer];
  }
  return result;
}

std::vector<std::uint32_t> Coverage::loading_counts() const {
  ByNode loading = by_node(loading_);
  for (const auto& [node, ready] : by_node(ready_)) {
    const auto same = loading.find(node);
    if (same == loading.end()) continue;
    for (std::uint32_t layer = 0; layer < layer_count_; ++layer) {
      if (ready[layer]) same->second[layer] = false;
    }
  }
  return counts(loading);
}

std::vector<LayerRange> Coverage::gaps() const {
  return runs_of_zero(ready_counts());
}

}  // namespace mesh::tracker
