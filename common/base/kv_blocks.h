#pragma once

#include <cstdint>

#include "common/base/ids.h"

namespace mesh {

/// Tokens of one KV block: what engines page by, what a key of a prompt covers, and what room is counted in.
inline constexpr Position kKvBlockTokens = 128;

/// Blocks that hold `tokens`; the last may be part full.
constexpr std::uint64_t kv_blocks(std::uint64_t tokens) {
  return tokens / kKvBlockTokens + (tokens % kKvBlockTokens != 0);
}

}  // namespace mesh
