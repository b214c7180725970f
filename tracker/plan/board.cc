#include "tracker/plan/board.h"

#include <algorithm>

namespace mesh::tracker {
namespace {

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

}  // namespace

Board::Board(const std::vector<ModelProfile>& models, const HeadLayers& head,
             const std::vector<PlanNode>& nodes, const PlanOptions& options)
    : models_(&models), nodes_(&nodes), options_(&options) {
  for (const ModelProfile& model : models) {
    covered_.emplace_back(model.layers(), 0);
    counts_.emplace_back(model.layers(), 0);
    copies_.emplace_back(model.layers(), 0.0);
    std::vector<std::uint64_t>& sums = sums_.emplace_back(1, 0);
    for (std::uint32_t layer = 0; layer < model.layers(); ++layer) {
      sums.push_back(sums.back() + model.layer_bytes[layer] +
                     model.layer_bytes_per_token[layer] * options.budget.session_tokens);
    }
    widest_.push_back(loading_bytes(model, model.whole()));
  }
  ranges_.assign(nodes.size(), std::vector<LayerRange>(models.size()));
  for (std::size_t m = 0; m < models.size(); ++m) {
    const auto own = head.find(models[m].identity);
    head_layers_.push_back(own == head.end() ? 0 : std::min(own->second, models[m].layers()));
    count(m, {0, head_layers_[m]}, 1, +1, true);
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      LayerRange longest;
      std::vector<bool> silent(models[m].layers(), false);  // has the layer
      for (const Holding& holding : nodes[n].holdings) {
        if (holding.model != models[m].identity || holding.layers.end > models[m].layers()) continue;
        if (holding.layers.empty()) continue;
        if (longest.empty() || holding.layers.size() > longest.size()) longest = holding.layers;
        if (nodes[n].silent)
          std::fill(silent.begin() + holding.layers.begin, silent.begin() + holding.layers.end, true);
      }
      for (std::uint32_t layer = 0; layer < models[m].layers(); ++layer) {
        if (silent[layer]) count(m, {layer, layer + 1}, nodes[n].speed, +1, false);
      }
      if (!nodes[n].silent && !nodes[n].leaving) set_range(n, m, longest);
    }
  }
}

std::uint64_t Board::bytes(std::size_t model, LayerRange range) const {
  if (range.empty()) return 0;
  const ModelProfile& what = (*models_)[model];
  std::uint64_t sum = sums_[model][range.end] - sums_[model][range.begin] +
                      2ull * what.hidden_size * options_->budget.session_tokens;
  if (range.begin == 0) sum += what.head_bytes;
  if (range.end == what.layers()) sum += what.tail_bytes;
  if (range == what.whole()) sum -= what.tied_bytes;
  return sum;
}

void Board::count(std::size_t model, LayerRange range, double speed, int sign, bool covers) {
  for (std::uint32_t layer = range.begin; layer < range.end; ++layer) {
    counts_[model][layer] += static_cast<std::uint32_t>(sign);
    copies_[model][layer] += sign * speed;
    if (covers) covered_[model][layer] += static_cast<std::uint32_t>(sign);
  }
}

void Board::set_range(std::size_t node, std::size_t model, LayerRange range) {
  LayerRange& now = ranges_[node][model];
  count(model, now, (*nodes_)[node].speed, -1, true);
  now = range.empty() ? LayerRange{} : range;
  count(model, now, (*nodes_)[node].speed, +1, true);
}

bool Board::eligible(std::size_t node, std::size_t model) const {
  const PlanNode& who = (*nodes_)[node];
  const ModelProfile& what = (*models_)[model];
  return !who.leaving && !who.silent && !who.refuses.contains(what.identity) &&
         contains(who.model_types, what.model_type) && contains(who.quantizations, what.quantization) &&
         contains(who.compute_types, what.compute_type);
}

std::uint64_t Board::free_bytes(std::size_t node, std::size_t without) const {
  std::uint64_t used = options_->budget.reserve_bytes;
  for (std::size_t m = 0; m < models_->size(); ++m) {
    if (m != without) used += bytes(m, ranges_[node][m]);
  }
  return (*nodes_)[node].memory_bytes - std::min(used, (*nodes_)[node].memory_bytes);
}

bool Board::fits(std::size_t node, std::size_t model, LayerRange range) const {
  const ModelProfile& what = (*models_)[model];
  if (range.empty() || !what.may_split_at(range.begin) || !what.may_split_at(range.end)) return false;
  if (options_->max_node_layers != 0 && range.size() > options_->max_node_layers) return false;
  return bytes(model, range) + widest_[model] <= free_bytes(node, model);
}

std::vector<LayerRange> Board::gaps(std::size_t model) const {
  std::vector<LayerRange> gaps;
  for (std::uint32_t layer = 0; layer < (*models_)[model].layers(); ++layer) {
    if (covered_[model][layer] != 0) continue;
    if (gaps.empty() || gaps.back().end != layer) gaps.push_back({layer, layer});
    gaps.back().end = layer + 1;
  }
  return gaps;
}

bool Board::redundant(std::size_t node, std::size_t model) const {
  const LayerRange& range = ranges_[node][model];
  for (std::uint32_t layer = range.begin; layer < range.end; ++layer) {
    if (covered_[model][layer] < 2) return false;
  }
  return !range.empty();
}

std::vector<Assignment> Board::target() const {
  std::vector<Assignment> target;
  for (std::size_t n = 0; n < nodes_->size(); ++n) {
    for (std::size_t m = 0; m < models_->size(); ++m) {
      if (!ranges_[n][m].empty()) target.push_back({(*nodes_)[n].id, (*models_)[m].identity, ranges_[n][m]});
    }
  }
  std::sort(target.begin(), target.end());
  return target;
}

}  // namespace mesh::tracker
