#include "node/engine/models/arch/arch.h"
#include "node/engine/models/llama_class.h"

namespace mesh::engine::arch {

/// Llama 1–3.x, SmolLM 1–2 and what else uses their layout.
const Architecture kLlama{"llama", [](const json::View& config) {
                            return read_llama_class(config, {.qkv_bias = Presence::kByConfig,
                                                             .output_bias = Presence::kByConfig,
                                                             .mlp_bias = Presence::kByConfig,
                                                             .default_max_positions = 2048,
                                                             .windows = no_windows});
                          }};

}  // namespace mesh::engine::arch
