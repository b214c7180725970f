#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"

namespace mesh::engine {

class LinearWeight;

/// Sizes of a decoder, in values.
struct StageShape {
  std::int64_t hidden = 0, intermediate = 0, vocab = 0;
  std::int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
  bool quantised = false;  ///< some of its matrices
};

/// A layer's weights, device memory. A layer is pre-norm with RMS norms, rotation and a gated MLP with SiLU.
struct StageLayer {
  const float* attention_norm = nullptr;
  const float* mlp_norm = nullptr;
  const float* query_norm = nullptr;  ///< null: none
  const float* key_norm = nullptr;
  const LinearWeight* qkv = nullptr;
  const LinearWeight* attention_out = nullptr;
  const LinearWeight* mlp_in = nullptr;
  const LinearWeight* mlp_out = nullptr;
  std::int64_t window = 0;
  float attention_scale = 1;
};

/// The layers of one range, with embedding and head where the shard has them.
struct StageModel {
  StageShape shape;
  float epsilon = 0;
  std::span<const float> frequencies;  ///< host memory; [pairs]
  float rotation_scale = 1;
  std::vector<StageLayer> layers;
  const LinearWeight* tokens = nullptr;
  const float* final_norm = nullptr;
  const LinearWeight* head = nullptr;
  /// Lives exactly as long as the weights may be used. Equal owner, first layer and number of layers: the
  /// same model.
  std::shared_ptr<const void> owner;
  std::uint32_t first_layer = 0;
};

/// Rows of one session; causal.
struct StageSegment {
  std::int64_t rows = 0;
  std::int64_t start = 0;
  std::span<const std::int32_t> ids;  ///< or `hidden`
  const void* hidden = nullptr;       ///< [rows, H], host memory or, bfloat16, rows of hidden_rows()
  bool hidden_bfloat16 = false;
  bool hidden_on_device = false;
  std::vector<std::byte*> blocks;  ///< KV of all layers of the range, one block every 128 positions
  void* out = nullptr;             ///< host memory for the hidden states after the last layer, or null
  bool out_bfloat16 = false;
};

struct StageSampled {
  std::int64_t row = 0;     ///< in the forward
  float* logits = nullptr;  ///< host memory for the row's logits [V], or null
  // Results:
  bool finite = false;
  std::int32_t id = 0;  ///< the lowest id among the best
  float logprob = 0;    ///< log-softmax at it
};

struct StageBatch {
  std::vector<StageSegment> segments;
  std::vector<std::int32_t> rotary;  ///< of every row
  std::vector<StageSampled> sampled;
  std::vector<std::uint8_t> finite;  ///< result: of every row, the hidden states after the last layer
  // The device's own:
  std::uint64_t number = 0;
  Status status;
};

/// How forwards were run.
struct StageCounts {
  std::uint64_t graphs = 0;    ///< replayed from a captured graph
  std::uint64_t launches = 0;  ///< launched kernel by kernel
};

/// A device's own way through a whole forward, beside that of DeviceOps op by op. For the executor alone.
class StageForward {
 public:
  virtual ~StageForward() = default;
  /// Whether it can run this model; if not, the ops do. Fills in shape.quantised.
  virtual bool takes(StageModel& model) const = 0;
  /// Enqueues: appends the rows' keys and values, runs the layers and the head on the sampled rows, behind
  /// the forwards begun before. Input is taken in before it returns; the batch and what it points to for
  /// results must stay until finish(). Two forwards are under way at most: the third begin() waits for the
  /// first. An error concerns the whole batch, of which then nothing is under way.
  virtual Status begin(const StageModel& model, StageBatch& batch) = 0;
  /// Waits until the forward has ended and its results are there. Any thread, also while another forward
  /// begins. An error concerns the whole batch.
  virtual Status finish(StageBatch& batch) = 0;
  /// [rows, H] on the device, where segments with out_bfloat16 have their rows, for the input of the next
  /// begin(); null when later forwards took their place.
  virtual const std::byte* hidden_rows(const StageBatch& batch) const = 0;
  virtual StageCounts counts() const = 0;  ///< any thread
};

}  // namespace mesh::engine
