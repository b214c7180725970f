#include <algorithm>
#include <limits>
#include <numeric>

#include "tracker/plan/board.h"

namespace mesh::tracker {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
/// The table has nodes · layers² entries to weigh; more nodes than this never help one chain.
constexpr std::size_t kMostNodes = 256;

/// Bytes to load when a range replaces another.
std::uint64_t moved_bytes(const ModelProfile& model, LayerRange from, LayerRange to) {
  std::uint64_t sum = 0;
  for (std::uint32_t layer = to.begin; layer < to.end; ++layer) {
    if (!from.contains(layer)) sum += model.layer_bytes[layer];
  }
  return sum;
}

/// Eligible nodes in the order of their ranges; those without one stand where the first gap is.
std::vector<std::size_t> in_order(const Board& board, std::size_t model) {
  const auto gaps = board.gaps(model);
  const std::uint32_t first_gap = gaps.empty() ? 0 : gaps.front().begin;
  std::vector<std::size_t> order;
  for (std::size_t node = 0; node < board.nodes().size(); ++node) {
    if (board.eligible(node, model)) order.push_back(node);
  }
  const auto place = [&](std::size_t node) {
    const LayerRange& range = board.range(node, model);
    return std::pair(range.empty() ? first_gap : range.begin, board.nodes()[node].id);
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
  if (order.size() > kMostNodes) order.resize(kMostNodes);
  return order;
}

}  // namespace

bool relay_chain(Board& board, std::size_t model) {
  const ModelProfile& what = board.models()[model];
  const std::uint32_t layers = what.layers();
  const std::uint32_t head_layers = board.head_layers(model);
  const std::vector<std::size_t> order = in_order(board, model);

  // cost[i][b]: fewest bytes to load so that the first i nodes cover [head_layers, b); from[i][b]: where node
  // i began.
  std::vector<std::vector<std::uint64_t>> cost(order.size() + 1,
                                               std::vector<std::uint64_t>(layers + 1, kNever));
  std::vector<std::vector<std::uint32_t>> from(order.size() + 1, std::vector<std::uint32_t>(layers + 1, 0));
  cost[0][head_layers] = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const LayerRange now = board.range(order[i], model);
    for (std::uint32_t begin = head_layers; begin <= layers; ++begin) {
      if (cost[i][begin] == kNever) continue;
      if (cost[i][begin] < cost[i + 1][begin]) {
        cost[i + 1][begin] = cost[i][begin];
        from[i + 1][begin] = begin;
      }
      for (std::uint32_t end = begin + 1; end <= layers; ++end) {
        const LayerRange range{begin, end};
        if (!now.contains(range) && !board.fits(order[i], model, range)) continue;
        const std::uint64_t sum = cost[i][begin] + moved_bytes(what, now, range);
        if (sum < cost[i + 1][end]) {
          cost[i + 1][end] = sum;
          from[i + 1][end] = begin;
        }
      }
    }
  }
  if (cost[order.size()][layers] == kNever) return false;

  std::uint32_t end = layers;
  for (std::size_t i = order.size(); i > 0; --i) {
    const std::uint32_t begin = from[i][end];
    board.set_range(order[i - 1], model, {begin, end});
    end = begin;
  }
  return true;
}

}  // namespace mesh::tracker
