#pragma once

#include <span>
#include <vector>

#include "node/engine/cache/cache_table.h"
#include "node/engine/exec/workspace.h"
#include "node/engine/weights/parts.h"

namespace mesh::engine {

/// One segment's place in a forward.
struct ForwardSegment {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t start = 0;
  const SessionCache* cache = nullptr;
  const float* mask = nullptr;  ///< [rows, start + rows] in host memory, or null: causal
};

/// What the layers of one forward share.
struct Forward {
  DeviceOps& ops;
  Workspace& workspace;
  const DecoderSpec& spec;
  ops::KvLayout kv;
  std::vector<ForwardSegment> segments;
  ConstMatrix cos, sin;  ///< [T, rope.dims / 2]; no columns without rotation
  OperationObserver* observer = nullptr;
};

/// cos and sin of the rows' rotary positions: angles are float32 products, cos and sin their nearest float32
/// values times rope.attention_scale.
Status set_rotation(Forward& forward, std::span<const Position> positions);

/// x [T, H] → x after decoder layer `index`, in place; appends the rows' keys and values.
Status run_layer(Forward& forward, const LayerPart& part, std::uint32_t index, Matrix x);

/// x [T, H] ← token rows, plus position rows where the model has them.
Status run_embedding(Forward& forward, const MatrixPart& tokens, const MatrixPart* positions,
                     std::span<const TokenId> ids, std::span<const Position> rows, Matrix x);

/// Final norm and lm_head of x [R, H], R ≤ kHeadRows: logits [R, V].
StatusOr<Matrix> run_head(Forward& forward, const NormPart& norm, const MatrixPart& matrix, ConstMatrix x);

}  // namespace mesh::engine
