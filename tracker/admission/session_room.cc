#include "tracker/admission/session_room.h"

#include <algorithm>
#include <optional>

#include "common/base/kv_blocks.h"

namespace mesh::tracker {
namespace {

constexpr std::uint64_t kMostBlocks = kv_blocks(std::uint64_t{1} << 24);

/// Nodes that a chain up to some border may end with: whether there is one other than a given node needs two.
struct Ends {
  bool any = false;  ///< the first layer: no node before
  std::optional<NodeId> one, other;

  bool lets_begin(const NodeId& node) const { return any || (one && *one != node) || other.has_value(); }
  void add(const NodeId& node) {
    if (!one) {
      one = node;
    } else if (*one != node) {
      other = node;
    }
  }
  bool reached() const { return any || one.has_value(); }
};

/// The layers one after another, with the borders at which a part may end.
class Chain {
 public:
  Chain(const CacheShape& shape, std::span<const CopyRoom> copies) : copies_(copies) {
    sums_.push_back(0);
    for (const std::uint64_t bytes : shape.layer_bytes_per_token) sums_.push_back(sums_.back() + bytes);
    const auto layers = static_cast<std::uint32_t>(shape.layer_bytes_per_token.size());
    if (shape.split_points.empty()) {
      for (std::uint32_t i = 0; i <= layers; ++i) borders_.push_back(i);
    } else {
      borders_.push_back(0);
      borders_.insert(borders_.end(), shape.split_points.begin(), shape.split_points.end());
      borders_.push_back(layers);
    }
  }

  /// False when the layers do not follow one another whatever room there is.
  bool exists() const { return fits(0); }
  bool fits(std::uint64_t blocks) const { return ends(blocks).back().reached(); }

  /// Of a number of blocks that does not fit: what comes nearest to going on where no part does.
  NoFit first_gap(std::uint64_t blocks) const {
    const std::vector<Ends> ends = this->ends(blocks);
    std::size_t last = ends.size() - 1;
    while (!ends[last].reached()) --last;
    NoFit no;
    for (const CopyRoom& one : copies_) {
      for (std::size_t from = last + 1; from-- > 0;) {
        const LayerRange part{borders_[from], borders_[last + 1]};
        if (!one.copy.layers.contains(part) || !ends[from].lets_begin(one.copy.node)) continue;
        const std::uint64_t needed = bytes(part, blocks);
        const bool nearer = no.layers.empty() || needed - one.cache_bytes < no.needed_bytes - no.free_bytes;
        if (needed > one.cache_bytes && nearer) {
          no.layers = part;
          no.node = one.copy.node;
          no.needed_bytes = needed;
          no.free_bytes = one.cache_bytes;
        }
        break;
      }
    }
    return no;
  }

 private:
  std::uint64_t bytes(const LayerRange& range, std::uint64_t blocks) const {
    return (sums_[range.end] - sums_[range.begin]) * kKvBlockTokens * blocks;
  }
  std::vector<Ends> ends(std::uint64_t blocks) const {
    std::vector<Ends> ends(borders_.size());
    ends[0].any = true;
    for (std::size_t from = 0; from + 1 < borders_.size(); ++from) {
      for (const CopyRoom& one : copies_) {
        if (one.copy.layers.begin > borders_[from] || !ends[from].lets_begin(one.copy.node)) continue;
        for (std::size_t to = from + 1; to < borders_.size() && borders_[to] <= one.copy.layers.end; ++to) {
          if (bytes({borders_[from], borders_[to]}, blocks) > one.cache_bytes) break;
          ends[to].add(one.copy.node);
        }
      }
    }
    return ends;
  }

  std::span<const CopyRoom> copies_;
  std::vector<std::uint64_t> sums_;  ///< bytes per token of the layers before
  std::vector<std::uint32_t> borders_;
};

}  // namespace

std::optional<NoFit> find_room(const CacheShape& shape, std::span<const CopyRoom> copies,
                               std::uint64_t tokens) {
  const Chain chain(shape, copies);
  const std::uint64_t blocks = std::min(kv_blocks(tokens), kMostBlocks);
  if (chain.fits(blocks) || !chain.exists()) return std::nullopt;
  NoFit no = chain.first_gap(blocks);
  std::uint64_t low = 0, high = blocks;  // low fits, high does not
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (chain.fits(middle) ? low : high) = middle;
  }
  no.most_tokens = low * kKvBlockTokens;
  return no;
}

}  // namespace mesh::tracker
