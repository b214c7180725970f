#include "tracker/plan/profile.h"

#include <algorithm>

namespace mesh::tracker {

bool ModelProfile::may_split_at(std::uint32_t layer) const {
  if (layer == 0 || layer == layers() || split_points.empty()) return layer <= layers();
  return std::binary_search(split_points.begin(), split_points.end(), layer);
}

std::uint64_t weight_bytes(const ModelProfile& model, LayerRange range) {
  if (range.empty()) return 0;
  std::uint64_t sum = 0;
  for (std::uint32_t layer = range.begin; layer < range.end; ++layer) sum += model.layer_bytes[layer];
  if (range.begin == 0) sum += model.head_bytes;
  if (range.end == model.layers()) sum += model.tail_bytes;
  if (range == model.whole()) sum -= model.tied_bytes;
  return sum;
}

std::uint64_t shard_bytes(const ModelProfile& model, LayerRange range, const MemoryBudget& budget) {
  if (range.empty()) return 0;
  std::uint64_t sum = weight_bytes(model, range) + 2ull * model.hidden_size * budget.session_tokens;
  for (std::uint32_t layer = range.begin; layer < range.end; ++layer) {
    sum += model.layer_bytes_per_token[layer] * budget.session_tokens;
  }
  return sum;
}

std::uint64_t loading_bytes(const ModelProfile& model, LayerRange range) {
  if (range.empty()) return 0;
  return *std::max_element(model.layer_bytes.begin() + range.begin, model.layer_bytes.begin() + range.end);
}

}  // namespace mesh::tracker
