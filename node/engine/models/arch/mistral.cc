#include "node/engine/models/arch/arch.h"
#include "node/engine/models/config_checks.h"
#include "node/engine/models/llama_class.h"

namespace mesh::engine::arch {
namespace {

/// One window for all layers: 4096 when sliding_window is absent, none when it is null.
StatusOr<std::vector<std::uint32_t>> windows(const json::View& config, std::uint32_t layers) {
  const std::uint32_t fallback = config.value().as_object().contains("sliding_window") ? 0 : 4096;
  MESH_ASSIGN_OR_RETURN(const std::uint32_t window,
                        size_field_or(config, "sliding_window", kMaxPositions, fallback));
  MESH_ASSIGN_OR_RETURN(const std::optional<std::vector<bool>> sliding, sliding_layers(config, layers));
  for (std::uint32_t i = 0; sliding && i < layers; ++i) {
    if ((*sliding)[i] != (window != 0)) {
      return config.error("layer_types: mistral's layers are all alike, as sliding_window says");
    }
  }
  return std::vector<std::uint32_t>(layers, window);
}

}  // namespace

const Architecture kMistral{"mistral", [](const json::View& config) {
                              return read_llama_class(config,
                                                      {.default_max_positions = 131072, .windows = windows});
                            }};

}  // namespace mesh::engine::arch
