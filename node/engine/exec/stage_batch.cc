#include "node/engine/exec/stage_batch.h"

#include <algorithm>
#include <utility>

namespace mesh::engine {
namespace {

constexpr std::size_t kMostModels = 16;

}  // namespace

StageShape stage_shape(const DecoderSpec& spec) {
  return {.hidden = spec.hidden,
          .intermediate = spec.intermediate,
          .vocab = spec.vocab,
          .query_heads = spec.query_heads,
          .kv_heads = spec.kv_heads,
          .head_dim = spec.head_dim};
}

std::optional<StageModel> stage_model(const LoadedShard& shard, const LayerRange& range) {
  const DecoderSpec& spec = *shard.decoder;
  if (spec.norm != NormKind::kRms || !spec.gated_mlp || spec.activation != Activation::kSilu)
    return std::nullopt;
  if (shard.positions) return std::nullopt;
  StageModel model{.shape = stage_shape(spec),
                   .epsilon = spec.norm_epsilon,
                   .frequencies = spec.rope.frequencies,
                   .rotation_scale = spec.rope.attention_scale,
                   .layers = {},
                   .owner = shard.decoder,
                   .first_layer = range.begin};
  model.layers.reserve(range.size());
  for (std::uint32_t i = range.begin; i < range.end; ++i) {
    const LayerPart& part = shard.layer(i);
    if (part.attention_norm.bias || part.mlp_norm.bias) return std::nullopt;
    model.layers.push_back({.attention_norm = part.attention_norm.weight_data(),
                            .mlp_norm = part.mlp_norm.weight_data(),
                            .query_norm = part.query_norm.weight_data(),
                            .key_norm = part.key_norm.weight_data(),
                            .qkv = part.qkv.get(),
                            .attention_out = part.attention_out.get(),
                            .mlp_in = part.mlp_in.get(),
                            .mlp_out = part.mlp_out.get(),
                            .window = spec.layers[i].window,
                            .attention_scale = spec.layers[i].attention_scale});
  }
  if (shard.tokens) model.tokens = shard.tokens->matrix.get();
  if (shard.final_norm) model.final_norm = shard.final_norm->norm.weight_data();
  if (shard.head_matrix) model.head = shard.head_matrix->matrix.get();
  return model;
}

std::optional<StageModel> StageModels::find(const StageForward& stage,
                                            const std::shared_ptr<const LoadedShard>& shard,
                                            const LayerRange& range) {
  const auto found = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return entry.range == range && entry.shard.lock() == shard; });
  if (found != entries_.end()) {
    std::rotate(found, found + 1, entries_.end());
  } else {
    std::erase_if(entries_, [](const Entry& entry) { return entry.shard.expired(); });
    if (entries_.size() >= kMostModels) entries_.erase(entries_.begin());
    Entry entry{shard, range, stage_model(*shard, range)};
    if (entry.model && !stage.takes(*entry.model)) entry.model.reset();
    if (entry.model) entry.model->owner.reset();
    entries_.push_back(std::move(entry));
  }
  std::optional<StageModel> model = entries_.back().model;
  if (model) model->owner = shard->decoder;
  return model;
}

}  // namespace mesh::engine
