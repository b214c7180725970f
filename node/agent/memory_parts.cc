#include "node/agent/memory_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "node/agent/about_size.h"

namespace mesh {

MemoryParts memory_parts(const engine::MemoryUse& engine, std::uint64_t program_bytes) {
  return {.weights = engine.weight_bytes,
          .kv = engine.cache_bytes,
          .working = engine.working_bytes,
          .hand_over = program_bytes - std::min(program_bytes, engine.budget_bytes),
          .free = engine.free_bytes()};
}

std::string to_string(const MemoryParts& parts) {
  return fmt::format(
      "memory: {} = {} weights + {} KV of sessions + {} working space + {} kept outputs and frames + {} free",
      about_size(parts.total()), about_size(parts.weights), about_size(parts.kv), about_size(parts.working),
      about_size(parts.hand_over), about_size(parts.free));
}

}  // namespace mesh
