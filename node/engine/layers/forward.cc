#include "node/engine/layers/forward.h"

#include <algorithm>
#include <cmath>

namespace mesh::engine {
namespace {

void show(const Forward& forward, std::string_view operation, std::optional<std::uint32_t> layer,
          ConstMatrix x) {
  if (forward.observer == nullptr) return;
  std::vector<float> values(static_cast<std::size_t>(x.rows * x.cols));
  forward.ops.download(x, values.data());
  forward.observer->seen(operation, layer, static_cast<std::size_t>(x.rows), static_cast<std::size_t>(x.cols),
                         values);
}

void normalise(Forward& forward, const NormWeights& norm, ConstMatrix x, Matrix out) {
  if (forward.spec.norm == NormKind::kLayerNorm) {
    forward.ops.layer_norm(x, norm.weight_data(), norm.bias_data(), forward.spec.norm_epsilon, out);
  } else {
    forward.ops.rms_norm(x, norm.weight_data(), forward.spec.norm_epsilon, out);
  }
}

/// Each segment with where `layer` has its blocks.
struct AttentionInputs {
  AttentionInputs(const Forward& forward, std::uint32_t layer) {
    blocks.reserve(forward.segments.size());
    for (const ForwardSegment& segment : forward.segments) {
      blocks.push_back(segment.cache->blocks_of(layer));
      segments.push_back({.first_row = segment.first_row,
                          .rows = segment.rows,
                          .start = segment.start,
                          .blocks = blocks.back(),
                          .mask = segment.mask,
                          .mask_stride = segment.mask == nullptr ? 0 : segment.start + segment.rows});
    }
  }
  std::vector<std::vector<std::byte*>> blocks;
  std::vector<ops::AttentionSegment> segments;
};

Status run_attention(Forward& forward, const LayerPart& part, std::uint32_t index, Matrix x) {
  const DecoderSpec& spec = forward.spec;
  const std::int64_t query_width = std::int64_t{spec.query_heads} * spec.head_dim;
  const std::int64_t key_width = std::int64_t{spec.kv_heads} * spec.head_dim;
  MESH_ASSIGN_OR_RETURN(const Matrix normed, forward.workspace.matrix(Slot::kNormed, x.rows, x.cols));
  MESH_ASSIGN_OR_RETURN(const Matrix qkv,
                        forward.workspace.matrix(Slot::kQkv, x.rows, query_width + 2 * key_width));
  MESH_ASSIGN_OR_RETURN(const Matrix attended,
                        forward.workspace.matrix(Slot::kAttended, x.rows, query_width));
  normalise(forward, part.attention_norm, x, normed);
  show(forward, "attention_norm", index, normed);
  forward.ops.linear(*part.qkv, normed, qkv, ops::Store::kAssign);

  const Matrix q = qkv.columns(0, query_width);
  const Matrix k = qkv.columns(query_width, key_width);
  const Matrix v = qkv.columns(query_width + key_width, key_width);
  show(forward, "q", index, q);
  show(forward, "k", index, k);
  show(forward, "v", index, v);
  if (part.query_norm.weight) {
    forward.ops.rms_norm_heads(q, spec.query_heads, part.query_norm.weight_data(), spec.norm_epsilon);
    forward.ops.rms_norm_heads(k, spec.kv_heads, part.key_norm.weight_data(), spec.norm_epsilon);
    show(forward, "q_norm", index, q);
    show(forward, "k_norm", index, k);
  }
  if (spec.rope.dims != 0) {
    forward.ops.rotary(q, spec.query_heads, forward.cos, forward.sin);
    forward.ops.rotary(k, spec.kv_heads, forward.cos, forward.sin);
    show(forward, "q_rotated", index, q);
    show(forward, "k_rotated", index, k);
  }
  const AttentionInputs inputs(forward, index);
  const LayerSpec& layer = spec.layers[index];
  forward.ops.append_kv(forward.kv, inputs.segments, k, v);
  forward.ops.attention(forward.kv,
                        {.heads = spec.query_heads, .window = layer.window, .scale = layer.attention_scale},
                        inputs.segments, q, attended);
  show(forward, "attention", index, attended);
  forward.ops.linear(*part.attention_out, attended, x, ops::Store::kAdd);
  show(forward, "attention_residual", index, x);
  return absl::OkStatus();
}

Status run_mlp(Forward& forward, const LayerPart& part, std::uint32_t index, Matrix x) {
  const std::int64_t inner = forward.spec.intermediate;
  MESH_ASSIGN_OR_RETURN(const Matrix normed, forward.workspace.matrix(Slot::kNormed, x.rows, x.cols));
  const std::int64_t most = std::min(x.rows, kMlpRows);
  const std::int64_t width = forward.spec.gated_mlp ? 2 * inner : inner;
  MESH_ASSIGN_OR_RETURN(const Matrix wide, forward.workspace.matrix(Slot::kMlpIn, most, width));
  Matrix gated;
  if (forward.spec.gated_mlp) {
    MESH_ASSIGN_OR_RETURN(gated, forward.workspace.matrix(Slot::kMlpOut, most, inner));
  }
  normalise(forward, part.mlp_norm, x, normed);
  show(forward, "mlp_norm", index, normed);
  for (std::int64_t row = 0; row < x.rows; row += most) {
    const std::int64_t rows = std::min(most, x.rows - row);
    const Matrix in = wide.row_range(0, rows);
    forward.ops.linear(*part.mlp_in, normed.row_range(row, rows), in, ops::Store::kAssign);
    if (forward.spec.gated_mlp) show(forward, "gate", index, in.columns(0, inner));
    show(forward, "up", index, in.columns(width - inner, inner));
    Matrix activated = in;
    if (forward.spec.gated_mlp) {
      activated = gated.row_range(0, rows);
      forward.ops.silu_mul(in, activated);
    } else if (forward.spec.activation == Activation::kGeluErf) {
      forward.ops.gelu_exact(in);
    } else {
      forward.ops.gelu_tanh(in);
    }
    show(forward, "mlp_activation", index, activated);
    forward.ops.linear(*part.mlp_out, activated, x.row_range(row, rows), ops::Store::kAdd);
  }
  show(forward, "hidden", index, x);
  return absl::OkStatus();
}

}  // namespace

Status set_rotation(Forward& forward, std::span<const Position> positions) {
  const RopeSpec& rope = forward.spec.rope;
  const auto rows = static_cast<std::int64_t>(positions.size());
  const auto pairs = static_cast<std::int64_t>(rope.frequencies.size());
  if (pairs == 0) return absl::OkStatus();
  std::vector<float> cos, sin;
  cos.reserve(static_cast<std::size_t>(rows * pairs));
  sin.reserve(cos.capacity());
  for (const Position position : positions) {
    for (const float frequency : rope.frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      cos.push_back(static_cast<float>(std::cos(double{angle})) * rope.attention_scale);
      sin.push_back(static_cast<float>(std::sin(double{angle})) * rope.attention_scale);
    }
  }
  MESH_ASSIGN_OR_RETURN(const Matrix cos_rows, forward.workspace.matrix(Slot::kCos, rows, pairs));
  MESH_ASSIGN_OR_RETURN(const Matrix sin_rows, forward.workspace.matrix(Slot::kSin, rows, pairs));
  forward.ops.upload(cos, cos_rows.data);
  forward.ops.upload(sin, sin_rows.data);
  forward.cos = cos_rows;
  forward.sin = sin_rows;
  return absl::OkStatus();
}

Status run_layer(Forward& forward, const LayerPart& part, std::uint32_t index, Matrix x) {
  MESH_RETURN_IF_ERROR(run_attention(forward, part, index, x));
  return run_mlp(forward, part, index, x);
}

Status run_embedding(Forward& forward, const MatrixPart& tokens, const MatrixPart* positions,
                     std::span<const TokenId> ids, std::span<const Position> rows, Matrix x) {
  forward.ops.embed(*tokens.matrix, ids, x);
  if (positions == nullptr) {
    show(forward, "embedding", std::nullopt, x);
    return absl::OkStatus();
  }
  MESH_ASSIGN_OR_RETURN(const Matrix learned, forward.workspace.matrix(Slot::kRows, x.rows, x.cols));
  const std::vector<std::int32_t> indices(rows.begin(), rows.end());
  forward.ops.embed(*positions->matrix, indices, learned);
  forward.ops.add(x, learned);
  show(forward, "embedding", std::nullopt, x);
  return absl::OkStatus();
}

StatusOr<Matrix> run_head(Forward& forward, const NormPart& norm, const MatrixPart& matrix, ConstMatrix x) {
  MESH_ASSIGN_OR_RETURN(const Matrix normed, forward.workspace.matrix(Slot::kNormed, x.rows, x.cols));
  MESH_ASSIGN_OR_RETURN(const Matrix logits,
                        forward.workspace.matrix(Slot::kLogits, x.rows, std::int64_t{forward.spec.vocab}));
  normalise(forward, norm.norm, x, normed);
  show(forward, "final_norm", std::nullopt, normed);
  forward.ops.linear(*matrix.matrix, normed, logits, ops::Store::kAssign);
  show(forward, "logits", std::nullopt, logits);
  return logits;
}

}  // namespace mesh::engine
