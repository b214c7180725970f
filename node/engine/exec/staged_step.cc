#include <algorithm>

#include "node/engine/exec/segment_checks.h"
#include "node/engine/exec/segment_rows.h"
#include "node/engine/exec/stage_batch.h"
#include "node/engine/exec/step.h"

namespace mesh::engine {
namespace {

const void* hidden_of(const LiveSegment& live) {
  return live.segment->ids.empty() ? live.hidden.data() : nullptr;
}

}  // namespace

std::optional<StageModel> StepRunner::staged(const LocalStep& step, const LayerRange& range) {
  const StageForward* stage = ops_.stage();
  if (stage == nullptr || observer_ != nullptr) return std::nullopt;
  if (std::ranges::any_of(step.segments(), [](const Segment& one) { return one.mask.has_value(); }))
    return std::nullopt;
  return models_.find(*stage, step.shard_handle(), range);
}

Status StepRunner::begin_staged(LocalStep& step, const StageModel& model, std::span<LiveSegment> live) {
  auto forward = std::make_unique<StagedForward>();
  forward->live = live;
  StageBatch& batch = forward->batch;
  std::vector<Position> positions;
  for (LiveSegment& one : live) {
    const Segment& segment = *one.segment;
    if (one.device_rows != nullptr) {  // another forward may have taken their place
      one.device_rows = static_cast<LocalStep&>(*segment.from).device_rows(segment.from_segment);
      if (one.device_rows == nullptr) MESH_RETURN_IF_ERROR(take_from_source(one));
    }
    one.first_row = static_cast<std::int64_t>(positions.size());
    append_positions(segment, positions);
    StageSegment& staged = batch.segments.emplace_back(
        StageSegment{.rows = segment.rows,
                     .start = segment.start,
                     .ids = segment.ids,
                     .hidden = one.device_rows != nullptr ? one.device_rows : hidden_of(one),
                     .hidden_bfloat16 = segment.hidden_type == HiddenType::kBfloat16,
                     .hidden_on_device = one.device_rows != nullptr,
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
        forward->sampled.push_back({&one, segment.start + row + 1, forward->logits.size()});
        if (!needs_logits(segment)) continue;
        wanted.logits = forward->logits.emplace_back(static_cast<std::size_t>(model.shape.vocab)).data();
      }
    }
  }
  batch.rotary.assign(positions.begin(), positions.end());
  MESH_RETURN_IF_ERROR(ops_.stage()->begin(model, batch));
  step.begun(std::move(forward));
  return absl::OkStatus();
}

}  // namespace mesh::engine
