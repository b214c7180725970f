#include "node/runtime/step_convert.h"

#include <limits>
#include <utility>

#include "common/base/checked.h"

namespace mesh {
namespace {

constexpr std::uint64_t kMaxMaskValues = std::uint64_t{64} << 20;

/// Causal, but rows within one span see each other in both directions.
StatusOr<engine::AttentionMask> mask_of(const pipeline::StepSegment& segment) {
  const std::uint64_t keys = std::uint64_t{segment.start} + segment.rows;
  const auto values = checked_mul<std::uint64_t>(segment.rows, keys);
  if (!values || *values > kMaxMaskValues) {
    return error(StatusCode::kInvalidArgument, "a mask of {} rows over {} keys is too large", segment.rows,
                 keys);
  }
  engine::AttentionMask mask;
  mask.additive.assign(*values, -std::numeric_limits<float>::infinity());
  for (std::uint64_t row = 0; row < segment.rows; ++row) {
    const std::uint64_t position = segment.start + row;
    std::uint64_t visible = position + 1;
    for (const wire::MaskSpan& span : segment.spans) {
      if (span.begin <= position && position < span.end) visible = std::max<std::uint64_t>(visible, span.end);
    }
    if (visible > keys) {
      return error(StatusCode::kInvalidArgument, "a mask span ends at {}, the segment at {}", visible, keys);
    }
    std::fill_n(mask.additive.begin() + static_cast<std::ptrdiff_t>(row * keys), visible, 0.0f);
  }
  return mask;
}

}  // namespace

StatusOr<engine::Segment> to_engine(const pipeline::StepSegment& segment, const pipeline::StepWork& work,
                                    engine::CacheId cache) {
  if (!segment.sides.empty()) {
    return error(StatusCode::kUnimplemented, "this model takes no side tensor {}",
                 segment.sides.front().name);
  }
  engine::Segment out;
  out.cache = cache;
  out.start = segment.start;
  out.rows = segment.rows;
  if (work.takes_ids) {
    out.ids = segment.ids;
  } else if (segment.hidden != nullptr) {
    out.hidden = *segment.hidden;
  }
  if (segment.positions.axes == 1) {
    out.rotary_positions.assign(segment.positions.values.begin(), segment.positions.values.end());
  } else if (segment.positions.axes != 0) {
    return error(StatusCode::kUnimplemented, "this model takes one rotary axis, the segment has {}",
                 segment.positions.axes);
  }
  if (!segment.spans.empty()) {
    MESH_ASSIGN_OR_RETURN(out.mask, mask_of(segment));
  }
  out.want = engine::Want::kHidden;
  if (work.ends_model) out.want = segment.sample ? engine::Want::kTokens : engine::Want::kNothing;
  const wire::Sampling& sampling = segment.sampling;
  out.sampling = {sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed, sampling.choice};
  return out;
}

pipeline::SegmentOutput from_engine(engine::SegmentResult result) {
  pipeline::SegmentOutput out;
  out.status = std::move(result.status);
  if (!out.status.ok()) return out;
  if (!result.hidden.empty()) out.hidden = std::make_shared<const std::string>(std::move(result.hidden));
  if (!result.tokens.empty())
    out.token = pipeline::SampledToken{result.tokens[0].id, result.tokens[0].logprob};
  return out;
}

}  // namespace mesh
