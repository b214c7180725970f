#include "tracker/plan/plan.h"

#include "tracker/plan/board.h"

namespace mesh::tracker {
namespace {

std::string reason_for(const Board& board, std::size_t model, LayerRange gap) {
  const ModelProfile& what = board.models()[model];
  std::uint64_t most = 0;
  std::size_t able = 0;
  for (std::size_t node = 0; node < board.nodes().size(); ++node) {
    if (!board.eligible(node, model)) continue;
    ++able;
    most = std::max(most, board.free_bytes(node));
  }
  const std::uint64_t need = shard_bytes(what, gap, board.options().budget);
  if (board.nodes().empty()) return fmt::format("no node has joined yet; {} bytes are needed", need);
  if (able == 0) {
    return fmt::format(
        "no node may load {}, a {} model in {} with {} arithmetic; {} bytes are needed: start nodes with "
        "--quantization {} and --dtype {}, of a version that knows {}",
        what.name, what.model_type, what.quantization, what.compute_type, need, what.quantization,
        what.compute_type, what.model_type);
  }
  return fmt::format(
      "{} bytes are needed, the emptiest of {} nodes has {} free: start more nodes or give them "
      "more --memory",
      need, able, most);
}

}  // namespace

Plan make_plan(const std::vector<ModelProfile>& models, const HeadLayers& head,
               const std::vector<PlanNode>& nodes, Epoch epoch, const PlanOptions& options) {
  Plan plan;
  plan.epoch = epoch;
  const auto order_of = [&](const Board& board) {
    return order_steps(models, head, nodes, board.target(), options);
  };

  Board board(models, head, nodes, options);
  for (const Exchanges exchanges : {Exchanges::kAllowed, Exchanges::kForbidden}) {
    board = Board(models, head, nodes, options);
    for (std::size_t model = 0; model < models.size(); ++model) {
      if (fill_gaps(board, model, exchanges)) continue;
      Board other = board;
      if (!relay_chain(other, model)) continue;
      if (const auto order = order_of(other); order.ok()) {
        board = other;
      } else {
        plan.notes.push_back(fmt::format("a chain that covers all of {} was rejected: {}", models[model].name,
                                         message_of(order.status())));
      }
    }
    const auto order = order_of(board);
    if (order.ok()) break;
    plan.notes.push_back(fmt::format("a target was rejected: {}", message_of(order.status())));
  }
  for (std::size_t model = 0; model < models.size(); ++model) {
    for (const LayerRange& gap : board.gaps(model)) {
      plan.gaps.push_back({models[model].identity, gap, reason_for(board, model, gap)});
    }
  }
  // Coverage comes first: memory that a gap could still use later is not spent on copies.
  if (plan.gaps.empty()) {
    Board more = board;
    add_copies(more);
    if (const auto order = order_of(more); order.ok()) {
      board = more;
    } else {
      plan.notes.push_back(fmt::format("further copies were rejected: {}", message_of(order.status())));
    }
  }

  plan.target = board.target();
  auto order = order_of(board);
  plan.steps = order.ok() ? *std::move(order) : steps_now(models, head, nodes, plan.target, options);
  return plan;
}

std::uint32_t auto_head_layers(const ModelProfile& model, std::uint64_t memory_bytes,
                               const MemoryBudget& budget) {
  for (std::uint32_t layers = model.layers(); layers > 0; --layers) {
    const LayerRange range{0, layers};
    if (!model.may_split_at(layers)) continue;
    if (shard_bytes(model, range, budget) + loading_bytes(model, range) + budget.reserve_bytes <=
        memory_bytes) {
      return layers;
    }
  }
  return 0;
}

}  // namespace mesh::tracker
