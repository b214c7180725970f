#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace mesh::tracker {

/// What the planner must know of one wanted model at one quantisation. All sizes in bytes.
struct ModelProfile {
  ModelIdentity identity;
  std::string name;
  std::string model_type;
  std::string quantization;
  std::string compute_type;
  std::uint32_t hidden_size = 0;
  std::vector<std::uint64_t> layer_bytes;            ///< weights of each layer, [layers]
  std::vector<std::uint64_t> layer_bytes_per_token;  ///< KV cache of each layer per token, [layers]
  std::uint64_t head_bytes = 0;                      ///< more for a shard that begins at 0: embeddings
  std::uint64_t tail_bytes =
      0;  ///< more for a shard that ends the model: norm, lm_head (its embedding when tied)
  std::uint64_t tied_bytes = 0;  ///< counted in both, held once by a shard with both
  std::vector<std::uint32_t>
      split_points;  ///< allowed borders inside (0, layers), ascending; empty: all of them

  std::uint32_t layers() const { return static_cast<std::uint32_t>(layer_bytes.size()); }
  LayerRange whole() const { return {0, layers()}; }
  bool may_split_at(std::uint32_t layer) const;
};

/// Room that a shard needs besides its weights.
struct MemoryBudget {
  std::uint64_t session_tokens =
      8192;  ///< tokens of all sessions together for which KV and outputs are planned
  std::uint64_t reserve_bytes = 64ull << 20;  ///< of each node, for buffers and programs
};

/// Bytes of the weights of `range`, with embeddings or head where it begins or ends the model.
std::uint64_t weight_bytes(const ModelProfile& model, LayerRange range);
/// Weights + KV cache for session_tokens + kept outputs (2·hidden bytes a token).
std::uint64_t shard_bytes(const ModelProfile& model, LayerRange range, const MemoryBudget& budget);
/// Bytes that loading `range` takes for a while beside the shard itself: its widest layer.
std::uint64_t loading_bytes(const ModelProfile& model, LayerRange range);

}  // namespace mesh::tracker
