#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tracker/plan/board.h"

namespace mesh::tracker {
namespace {

/// A way for one node to take layers of a run that wants them.
struct Offer {
  std::size_t node = 0;
  LayerRange range;                   ///< the node's range of the model afterwards
  std::uint32_t gained = 0;           ///< layers of the run that it then has and had not
  bool grows = false;                 ///< an existing range grows
  std::vector<std::size_t> gives_up;  ///< models whose redundant shards it drops for it
};

std::uint32_t overlap(LayerRange a, LayerRange b) {
  const std::uint32_t begin = std::max(a.begin, b.begin);
  const std::uint32_t end = std::min(a.end, b.end);
  return begin < end ? end - begin : 0;
}

/// The longest range for the node that takes layers of `run`: it grows a range that touches the run, or
/// begins a new one at the run's first layer.
std::optional<Offer> offer_of(const Board& board, std::size_t node, std::size_t model, LayerRange run) {
  const LayerRange now = board.range(node, model);
  std::optional<Offer> best;
  const auto consider = [&](LayerRange range) {
    const std::uint32_t gained = overlap(range, run) - overlap(now, run);
    if (gained > 0 && (!best || gained > best->gained) && board.fits(node, model, range)) {
      best = Offer{node, range, gained, !now.empty(), {}};
    }
  };
  if (now.empty()) {
    for (std::uint32_t end = run.end; end > run.begin; --end) consider({run.begin, end});
    if (best) return best;
    // Nothing that begins at the run's first layer fits: perhaps its borders or the model's end are too
    // heavy.
    for (std::uint32_t begin = run.begin + 1; begin < run.end; ++begin) consider({begin, run.end});
    return best;
  }
  if (now.end >= run.begin && now.end < run.end) {
    for (std::uint32_t end = run.end; end > now.end; --end) consider({now.begin, end});
  }
  if (now.begin > run.begin && now.begin <= run.end) {
    for (std::uint32_t begin = run.begin; begin < now.begin; ++begin) consider({begin, now.end});
  }
  return best;
}

/// More layers first, then growing before beginning, then the tighter fit, then the lower node.
bool better(const Board& board, const Offer& a, const std::optional<Offer>& b) {
  if (!b) return true;
  if (a.gained != b->gained) return a.gained > b->gained;
  if (a.grows != b->grows) return a.grows;
  const std::uint64_t free_a = board.free_bytes(a.node);
  const std::uint64_t free_b = board.free_bytes(b->node);
  if (free_a != free_b) return free_a < free_b;
  return board.nodes()[a.node].id < board.nodes()[b->node].id;
}

std::optional<Offer> best_offer(const Board& board, std::size_t model, LayerRange run) {
  std::optional<Offer> best;
  for (std::size_t node = 0; node < board.nodes().size(); ++node) {
    if (!board.eligible(node, model)) continue;
    const auto offer = offer_of(board, node, model, run);
    if (offer && better(board, *offer, best)) best = offer;
  }
  return best;
}

/// The best offer of a node that first gives up shards which others have too.
std::optional<Offer> best_exchange(Board& board, std::size_t model, LayerRange run) {
  std::optional<Offer> best;
  for (std::size_t node = 0; node < board.nodes().size(); ++node) {
    if (!board.eligible(node, model)) continue;
    std::vector<std::pair<std::size_t, LayerRange>> given;
    for (std::size_t other = 0; other < board.models().size(); ++other) {
      if (!board.redundant(node, other)) continue;
      given.emplace_back(other, board.range(node, other));
      board.set_range(node, other, {});
    }
    if (!given.empty()) {
      if (auto offer = offer_of(board, node, model, run)) {
        for (const auto& [other, range] : given) offer->gives_up.push_back(other);
        if (better(board, *offer, best)) best = offer;
      }
    }
    for (const auto& [other, range] : given) board.set_range(node, other, range);
  }
  return best;
}

void take(Board& board, std::size_t model, const Offer& offer) {
  for (const std::size_t other : offer.gives_up) board.set_range(offer.node, other, {});
  board.set_range(offer.node, model, offer.range);
}

}  // namespace

bool fill_gaps(Board& board, std::size_t model, Exchanges exchanges) {
  std::set<std::uint32_t> hopeless;  // first layers of gaps that nobody can take
  bool all = true;
  while (true) {
    const auto gaps = board.gaps(model);
    const auto gap = std::find_if(gaps.begin(), gaps.end(),
                                  [&](const LayerRange& g) { return !hopeless.contains(g.begin); });
    if (gap == gaps.end()) return all;
    auto offer = best_offer(board, model, *gap);
    if (!offer && exchanges == Exchanges::kAllowed) offer = best_exchange(board, model, *gap);
    if (offer) {
      take(board, model, *offer);
    } else {
      hopeless.insert(gap->begin);
      all = false;
    }
  }
}

void add_copies(Board& board) {
  const std::uint32_t most = board.options().max_copies;
  std::set<std::pair<std::size_t, std::uint32_t>> full;  // (model, layer) that nobody can copy now
  bool changed = false;                                  // since `full` was emptied last
  while (true) {
    // The weakest layer of all models that may have another copy, and the run of equally weak ones from it
    // on.
    std::optional<std::pair<std::size_t, LayerRange>> weakest;
    double copies = 0;
    for (std::size_t model = 0; model < board.models().size(); ++model) {
      const auto open = [&](std::uint32_t layer) {
        return layer >= board.head_layers(model) && board.covered(model, layer) > 0 &&
               !full.contains({model, layer}) && (most == 0 || board.copy_count(model, layer) < most);
      };
      for (std::uint32_t layer = 0; layer < board.models()[model].layers(); ++layer) {
        if (!open(layer) || (weakest && board.copies(model, layer) >= copies)) continue;
        copies = board.copies(model, layer);
        LayerRange run{layer, layer + 1};
        while (run.end < board.models()[model].layers() && open(run.end) &&
               board.copies(model, run.end) == copies) {
          ++run.end;
        }
        weakest = {model, run};
      }
    }
    if (!weakest) {
      // A range that grew may touch layers that it did not touch before.
      if (!changed) return;
      full.clear();
      changed = false;
      continue;
    }
    const auto& [model, run] = *weakest;
    if (const auto offer = best_offer(board, model, run)) {
      take(board, model, *offer);
      changed = true;
    } else {
      for (std::uint32_t layer = run.begin; layer < run.end; ++layer) full.insert({model, layer});
    }
  }
}

}  // namespace mesh::tracker
