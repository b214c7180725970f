#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tracker/registry/coverage.h"

namespace mesh::tracker {

/// What one ready copy could hold.
struct CopyRoom {
  Copy copy;
  std::uint64_t cache_bytes = 0;  ///< for caches when no session is there; kUnknownRoom: nobody knows yet
};
inline constexpr std::uint64_t kUnknownRoom = ~std::uint64_t{0};

/// The layers that sessions of one model must find room for.
struct CacheShape {
  std::vector<std::uint64_t> layer_bytes_per_token;  ///< [layers]
  std::vector<std::uint32_t> split_points;           ///< allowed borders, ascending; empty: all
};

/// Why no route can hold a session.
struct NoFit {
  std::uint64_t most_tokens = 0;   ///< what would fit; 0: nothing
  LayerRange layers;               ///< a part that `node` would have to run
  NodeId node;                     ///< the one that lacks least
  std::uint64_t needed_bytes = 0;  ///< more than free_bytes
  std::uint64_t free_bytes = 0;
};

/// Nothing when a chain of `copies` over all layers exists in which each part's cache for `tokens` (whole
/// blocks of 128) fits its copy's room, parts beginning and ending at allowed borders; or when no chain
/// exists whatever room there is, which is not a matter of memory. Two parts one after the other are at two
/// nodes; that a chain may come back to a node later errs towards yes. O(layers² · copies).
std::optional<NoFit> find_room(const CacheShape& shape, std::span<const CopyRoom> copies,
                               std::uint64_t tokens);

}  // namespace mesh::tracker
