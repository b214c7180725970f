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

std::vector<std::uint32_t> Coverage::counts(const std::vector<Copy>& copies) const {
  std::vector<std::uint32_t> result(layer_count_, 0);
  for (const Copy& copy : copies) {
    for (std::uint32_t layer = copy.layers.begin; layer < std::min(copy.layers.end, layer_count_); ++layer) {
      ++result[layer];
    }
  }
  return result;
}

std::vector<LayerRange> Coverage::gaps() const {
  return runs_of_zero(ready_counts());
}

}  // namespace mesh::tracker
