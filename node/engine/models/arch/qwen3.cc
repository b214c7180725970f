#include "node/engine/models/arch/arch.h"
#include "node/engine/models/llama_class.h"

namespace mesh::engine::arch {

/// Qwen 3, dense: the llama class with RMSNorm on each query and key head before rotation.
const Architecture kQwen3{"qwen3", [](const json::View& config) {
                            return read_llama_class(config, {.qkv_bias = Presence::kByConfig,
                                                             .output_bias = Presence::kByConfig,
                                                             .qk_norm = true,
                                                             .default_head_dim = 128,
                                                             .default_max_positions = 32768,
                                                             .windows = qwen_windows});
                          }};

}  // namespace mesh::engine::arch
