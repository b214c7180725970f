#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "node/engine/device/device_ops.h"
#include "node/engine/engine.h"
#include "node/engine/models/decoder_spec.h"
#include "node/engine/weights/memory_budget.h"

namespace mesh::engine {

/// Parts are immutable and shared: by shards that overlap, and by the embedding and a tied head.

struct NormWeights {
  DeviceMemory weight;
  DeviceMemory bias;  ///< null: none

  const float* weight_data() const { return reinterpret_cast<const float*>(weight.get()); }
  const float* bias_data() const { return reinterpret_cast<const float*>(bias.get()); }
};

using LinearPtr = std::shared_ptr<const LinearWeight>;

/// A matrix that is a part by itself: token rows, position rows, an untied lm_head.
struct MatrixPart {
  LinearPtr matrix;
  MemoryBudget::Reservation memory;
};

struct LayerPart {
  NormWeights attention_norm, mlp_norm;
  NormWeights query_norm, key_norm;  ///< weights null: none
  LinearPtr qkv, attention_out, mlp_in, mlp_out;
  MemoryBudget::Reservation memory;
};

struct NormPart {
  NormWeights norm;
  MemoryBudget::Reservation memory;
};

class LoadedShard final : public Shard {
 public:
  const ModelProfile& profile() const override { return decoder->profile; }
  const ShardSpec& spec() const override { return shape; }
  const ModelIdentity& identity() const override { return model; }
  std::uint64_t bytes() const override { return weight_bytes; }

  const LayerPart& layer(std::uint32_t index) const { return *layers.at(index - shape.range.begin); }

  std::shared_ptr<const DecoderSpec> decoder;
  ModelIdentity model;
  ShardSpec shape;
  std::uint64_t weight_bytes = 0;
  std::shared_ptr<const MatrixPart> tokens, positions;  ///< with the embedding
  std::vector<std::shared_ptr<const LayerPart>> layers;
  std::shared_ptr<const NormPart> final_norm;     ///< with the head
  std::shared_ptr<const MatrixPart> head_matrix;  ///< with the head; `tokens` when tied
};

}  // namespace mesh::engine
