#include "node/engine/models/arch/arch.h"
#include "node/engine/models/llama_class.h"

namespace mesh::engine::arch {

/// Qwen 2 and 2.5: the llama class with biases on q, k and v.
const Architecture kQwen2{
    "qwen2", [](const json::View& config) {
      return read_llama_class(
          config, {.qkv_bias = Presence::kAlways, .default_max_positions = 32768, .windows = qwen_windows});
    }};

}  // namespace mesh::engine::arch
