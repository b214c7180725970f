#include <algorithm>
#include <map>
#include <set>

#include "tracker/plan/plan.h"

namespace mesh::tracker {
namespace {

using Layers = std::vector<bool>;

/// What nodes hold, with the memory that it takes.
class Stock {
 public:
  Stock(const std::vector<ModelProfile>& models, const HeadLayers& head,
        const std::vector<Assignment>& target, const PlanOptions& options)
      : head_(head), options_(options) {
    for (const ModelProfile& model : models) models_[model.identity] = &model;
    for (const Assignment& item : target) wanted_[{item.node, item.model}] = item.layers;
  }

  const ModelProfile* model(const ModelIdentity& identity) const {
    const auto found = models_.find(identity);
    return found == models_.end() ? nullptr : found->second;
  }

  /// Bytes of all shards of the node and of `more`; layers that shards share count once. Shards of models
  /// that are no longer wanted are of unknown size and count nothing: the node itself refuses what does not
  /// fit.
  std::uint64_t bytes(const PlanNode& node, const Holding* more = nullptr) const {
    std::map<ModelIdentity, Layers> held;
    const auto add = [&](const Holding& holding) {
      const ModelProfile* what = model(holding.model);
      if (what == nullptr || holding.layers.end > what->layers()) return;
      Layers& layers = held.try_emplace(holding.model, what->layers(), false).first->second;
      std::fill(layers.begin() + holding.layers.begin, layers.begin() + holding.layers.end, true);
    };
    for (const Holding& holding : node.holdings) add(holding);
    if (more != nullptr) add(*more);
    std::uint64_t sum = options_.budget.reserve_bytes;
    for (const auto& [identity, layers] : held) {
      for (std::uint32_t begin = 0; begin < layers.size();) {
        std::uint32_t end = begin;
        while (end < layers.size() && layers[end]) ++end;
        sum += shard_bytes(*models_.at(identity), {begin, end}, options_.budget);
        begin = std::max(end, begin + 1);
      }
    }
    return sum;
  }

  LayerRange wanted(const PlanNode& node, const ModelIdentity& identity) const {
    const auto found = wanted_.find({node.id, identity});
    return found == wanted_.end() ? LayerRange{} : found->second;
  }

  /// The shard that fulfils the node's target of the model: the longest one that contains it, ready before
  /// loading.
  const Holding* fulfilling(const PlanNode& node, const ModelIdentity& identity) const {
    const LayerRange want = wanted(node, identity);
    const Holding* best = nullptr;
    for (const Holding& holding : node.holdings) {
      if (holding.model != identity || want.empty() || !holding.layers.contains(want)) continue;
      if (best == nullptr ||
          std::pair(holding.ready, holding.layers.size()) > std::pair(best->ready, best->layers.size())) {
        best = &holding;
      }
    }
    return best;
  }

  /// Ready copies of each layer that stay: those of the head and of shards that fulfil a target.
  Layers staying(const std::vector<PlanNode>& nodes, const ModelProfile& what) const {
    Layers layers(what.layers(), false);
    const auto own = head_.find(what.identity);
    if (own != head_.end()) {
      std::fill(layers.begin(), layers.begin() + std::min(own->second, what.layers()), true);
    }
    for (const PlanNode& node : nodes) {
      if (node.silent || node.leaving) continue;
      const Holding* holding = fulfilling(node, what.identity);
      if (holding == nullptr || !holding->ready) continue;
      std::fill(layers.begin() + holding->layers.begin, layers.begin() + holding->layers.end, true);
    }
    return layers;
  }

 private:
  const HeadLayers& head_;
  const PlanOptions& options_;
  std::map<ModelIdentity, const ModelProfile*> models_;
  std::map<std::pair<NodeId, ModelIdentity>, LayerRange> wanted_;
};

bool all_of(const Layers& layers, LayerRange range) {
  return std::all_of(layers.begin() + range.begin, layers.begin() + range.end,
                     [](bool there) { return there; });
}

/// `growing`: models of which the node loads, or is about to load, its target; what it holds of them is the
/// seed.
void add_drops(const Stock& stock, const PlanNode& node, const std::set<ModelIdentity>& growing,
               const std::map<ModelIdentity, Layers>& staying, std::vector<Step>& steps) {
  for (const Holding& holding : node.holdings) {
    const ModelProfile* what = stock.model(holding.model);
    const bool wanted_model = what != nullptr && holding.layers.end <= what->layers();
    if (wanted_model) {
      if (growing.contains(holding.model) || stock.fulfilling(node, holding.model) == &holding) continue;
      if (holding.ready && !all_of(staying.at(holding.model), holding.layers)) continue;
    }
    steps.push_back({StepKind::kDrop, node.id, holding.model, holding.layers});
  }
}

}  // namespace

std::vector<Step> steps_now(const std::vector<ModelProfile>& models, const HeadLayers& head,
                            const std::vector<PlanNode>& nodes, const std::vector<Assignment>& target,
                            const PlanOptions& options) {
  const Stock stock(models, head, target, options);
  std::map<ModelIdentity, Layers> staying;
  for (const ModelProfile& model : models) staying[model.identity] = stock.staying(nodes, model);

  std::vector<Step> steps;
  for (const PlanNode& node : nodes) {
    if (node.silent || node.leaving) continue;
    PlanNode now = node;
    std::set<ModelIdentity> growing;
    for (const ModelProfile& model : models) {
      const LayerRange want = stock.wanted(node, model.identity);
      if (want.empty()) continue;
      if (const Holding* holding = stock.fulfilling(node, model.identity)) {
        if (!holding->ready) growing.insert(model.identity);
        continue;
      }
      const Holding loading{model.identity, want, false};
      if (stock.bytes(now, &loading) + loading_bytes(model, want) > node.memory_bytes) continue;
      steps.push_back({StepKind::kLoad, node.id, model.identity, want});
      now.holdings.push_back(loading);
      growing.insert(model.identity);
    }
    add_drops(stock, node, growing, staying, steps);
  }
  return steps;
}

StatusOr<std::vector<Step>> order_steps(const std::vector<ModelProfile>& models, const HeadLayers& head,
                                        const std::vector<PlanNode>& nodes,
                                        const std::vector<Assignment>& target, const PlanOptions& options) {
  std::vector<PlanNode> now = nodes;
  for (PlanNode& node : now) {
    for (Holding& holding : node.holdings) holding.ready = true;
  }
  std::vector<Step> order;
  while (true) {
    const std::vector<Step> steps = steps_now(models, head, now, target, options);
    if (steps.empty()) break;
    for (const Step& step : steps) {
      auto& holdings = std::find_if(now.begin(), now.end(), [&](const PlanNode& node) {
                         return node.id == step.node;
                       })->holdings;
      if (step.kind == StepKind::kLoad) {
        holdings.push_back({step.model, step.layers, true});
      } else {
        std::erase_if(holdings,
                      [&](const Holding& h) { return h.model == step.model && h.layers == step.layers; });
      }
      order.push_back(step);
    }
  }
  const Stock stock(models, head, target, options);
  for (const Assignment& item : target) {
    const auto node =
        std::find_if(now.begin(), now.end(), [&](const PlanNode& each) { return each.id == item.node; });
    if (node == now.end() || node->silent || node->leaving) continue;
    if (stock.fulfilling(*node, item.model) != nullptr) continue;
    const ModelProfile& model = *stock.model(item.model);
    const Holding more{item.model, item.layers, false};
    return error(
        StatusCode::kFailedPrecondition,
        "node {} has {} bytes and would need {} to load layers {} of {} beside what it must keep meanwhile",
        item.node.hex().substr(0, 8), node->memory_bytes,
        stock.bytes(*node, &more) + loading_bytes(model, item.layers), to_string(item.layers), model.name);
  }
  return order;
}

}  // namespace mesh::tracker
