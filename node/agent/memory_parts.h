#pragma once

#include <cstdint>
#include <string>

#include "node/engine/engine.h"

namespace mesh {

/// What a program's memory is planned for. The engine takes no more than it says here; KV blocks are reserved
/// when a session opens and filled when its tokens come.
struct MemoryParts {
  std::uint64_t weights = 0;
  std::uint64_t kv = 0;         ///< reserved by sessions and kept prefixes
  std::uint64_t working = 0;    ///< a step's activations; on a GPU what its graphs hold, too
  std::uint64_t hand_over = 0;  ///< outputs kept for replacements, and frames that came in
  std::uint64_t free = 0;       ///< for further layers and sessions
  std::uint64_t total() const { return weights + kv + working + hand_over + free; }
};

/// `program_bytes`: all that the program may use; what exceeds the engine's budget is hand-over.
MemoryParts memory_parts(const engine::MemoryUse& engine, std::uint64_t program_bytes);
/// One line, such as "memory: 4.0 GiB = 256.6 MiB weights + …".
std::string to_string(const MemoryParts& parts);

}  // namespace mesh
