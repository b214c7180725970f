#include <algorithm>

#include "node/engine/exec/segment_checks.h"
#include "node/engine/exec/segment_rows.h"
#include "node/engine/exec/stage_batch.h"
#include "node/engine/exec/step.h"
#include "node/engine/sampling/sampler.h"

namespace mesh::engine {
namespace {

/// Whether sampling needs more than the arg-max that the device finds.
bool needs_logits(const Segment& segment) {
  return segment.sampling.temperature != 0 || segment.top > 0 || segment.want_logits;
}

}  // namespace

std::optional<StageModel> StepRunner::staged(const LoadedShard& shard, const LayerRange& range,
                                             std::span<const Live> live) const {
  const StageForward* stage = ops_.stage();
  if (stage == nullptr || observer_ != nullptr) return std::nullopt;
  if (std::ranges::any_of(live, [](const Live& one) { return one.segment->mask.has_value(); }))
    return std::nullopt;
  std::optional<StageModel> model = stage_model(shard, range);
  if (model && !stage->takes(*model)) model.reset();
  return model;
}

Status StepRunner::compute_staged(const StageModel& model, std::span<Live> live) {
  struct Sampled {
    Live* live;
    Position position;   // of the token to come
    std::size_t logits;  // index, when needed
  };
  StageBatch batch;
  std::vector<Position> positions;
  std::vector<Sampled> sampled;
  std::vector<std::vector<float>> logits;
  for (Live& one : live) {
    const Segment& segment = *one.segment;
    one.first_row = static_cast<std::int64_t>(positions.size());
    append_positions(segment, positions);
    StageSegment& staged = batch.segments.emplace_back(
        StageSegment{.rows = segment.rows,
                     .start = segment.start,
                     .ids = segment.ids,
                     .hidden = segment.ids.empty() ? segment.hidden.data() : nullptr,
                     .hidden_bfloat16 = segment.hidden_type == HiddenType::kBfloat16,
                     .blocks = model.layers.empty() ? std::vector<std::byte*>{}
                                                    : one.cache->blocks_of(model.first_layer)});
    if (segment.want == Want::kHidden) {
      staged.out_bfloat16 = segment.out_type == HiddenType::kBfloat16;
      const auto values = static_cast<std::size_t>(segment.rows * model.shape.hidden);
      one.result->hidden.resize(values * (staged.out_bfloat16 ? 2 : 4));
      staged.out = one.result->hidden.data();
    } else if (segment.want == Want::kTokens) {
      for (const std::uint32_t row : sampled_rows(segment)) {
        StageSampled& wanted = batch.sampled.emplace_back(StageSampled{.row = one.first_row + row});
        sampled.push_back({&one, segment.start + row + 1, logits.size()});
        if (!needs_logits(segment)) continue;
        wanted.logits = logits.emplace_back(static_cast<std::size_t>(model.shape.vocab)).data();
      }
    }
  }
  batch.rotary.assign(positions.begin(), positions.end());
  MESH_RETURN_IF_ERROR(ops_.stage()->run(model, batch));

  for (const Live& one : live) {
    const auto rows =
        std::span(batch.finite).subspan(static_cast<std::size_t>(one.first_row), one.segment->rows);
    if (std::ranges::count(rows, 0) != 0) one.result->status = not_finite(*one.segment, "hidden states");
  }
  for (std::size_t i = 0; i < sampled.size(); ++i) {
    const Segment& segment = *sampled[i].live->segment;
    SegmentResult& result = *sampled[i].live->result;
    const StageSampled& found = batch.sampled[i];
    if (!result.status.ok()) continue;
    if (!found.finite) {
      result.status = not_finite(segment, "logits");
    } else if (!needs_logits(segment)) {
      result.tokens.push_back({.id = found.id, .logprob = found.logprob, .top = {}});
    } else {
      const std::vector<float>& row = logits[sampled[i].logits];
      result.tokens.push_back(sample(row, segment.sampling, sampled[i].position, segment.top));
      if (segment.want_logits) result.logits.insert(result.logits.end(), row.begin(), row.end());
    }
  }
  return absl::OkStatus();
}

}  // namespace mesh::engine
