#include <algorithm>

#include "common/base/check.h"
#include "node/pipeline/hop_impl.h"

namespace mesh::pipeline {

/// A new session's cache begins with the blocks of its offer that are kept here.
void HopTable::Impl::begin_cache(HopSession& session) {
  const wire::OpenRequest& request = session.request;
  BeginCache order{session.key(),
                   session.cache,
                   request.identity,
                   request.range,
                   request.takes_ids,
                   request.max_tokens,
                   0,
                   {}};
  const auto offered = static_cast<std::uint32_t>(request.prefix.size());
  std::uint32_t blocks = 0;
  if (prefixes_.on() && !request.range.empty()) {
    order.blocks = prefixes_.match(request.range, request.prefix);
    blocks = static_cast<std::uint32_t>(order.blocks.size());
    session.prefix = request.prefix;
    counts_.prefix_hits += std::uint64_t{blocks} * options_.cache_block;
    counts_.prefix_misses += std::uint64_t{offered - blocks} * options_.cache_block;
  } else if (request.range.empty()) {
    blocks = offered;  // there is nothing to have
  }
  session.blocks_seen = blocks;
  session.next = order.tokens = blocks * options_.cache_block;
  orders_.emplace_back(std::move(order));
}

/// Rows were computed: keeps the blocks that they filled.
void HopTable::Impl::keep_prefix(HopSession& session, const wire::Segment& done) {
  if (session.prefix.empty()) return;
  const bool plain = done.positions.axes == 0 && done.spans.empty() && done.sides.empty();
  if (!plain) {
    session.prefix.resize(std::min<std::size_t>(session.prefix.size(), done.start / options_.cache_block));
  }
  const std::uint64_t bytes = std::uint64_t{options_.cache_block} * session.shard.cache_bytes_per_token;
  const std::span<const wire::PrefixKey> keys(session.prefix);
  while (session.blocks_seen < keys.size() &&
         (session.blocks_seen + 1) * options_.cache_block <= session.next) {
    const std::uint32_t block = session.blocks_seen++;
    const std::uint64_t held = room_.on_device() + prefixes_.bytes();
    const std::uint64_t free = room_.device_bytes() - std::min(room_.device_bytes(), held);
    if (room_.first_waiting() || bytes > free) continue;
    const auto id = prefixes_.keep(session.request.range, keys.first(block + 1), bytes);
    order_drops();
    if (!id) continue;
    const bool before = faults_.block_before && block > 0;
    orders_.emplace_back(ShareBlock{session.cache, before ? block - 1 : block, *id});
  }
}

void HopTable::Impl::order_drops() {
  for (const PrefixBlockId id : prefixes_.take_dropped()) orders_.emplace_back(DropBlock{id});
}

std::uint64_t HopTable::Impl::shrink_prefixes(std::uint64_t bytes) {
  const std::uint64_t before = prefixes_.bytes();
  prefixes_.shrink(bytes);
  order_drops();
  return before - prefixes_.bytes();
}

}  // namespace mesh::pipeline
