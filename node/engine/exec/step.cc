#include "node/engine/exec/step.h"

#include <algorithm>
#include <utility>

#include "node/engine/exec/segment_checks.h"
#include "node/engine/exec/segment_rows.h"
#include "node/engine/layers/forward.h"
#include "node/engine/sampling/sampler.h"

namespace mesh::engine {
namespace {

/// What the segment is fed by a step before it, when that ended badly or gives something else.
Status check_source(const Segment& segment, LocalStep& source, const LoadedShard& shard) {
  if (segment.from_segment >= source.segments().size())
    return error(StatusCode::kInvalidArgument, "the step before has no segment {}", segment.from_segment);
  const Segment& before = source.segments()[segment.from_segment];
  if (Status failed = source.status(segment.from_segment); !failed.ok()) return failed;
  if (before.want == Want::kHidden && before.out_type == HiddenType::kBfloat16 &&
      before.rows == segment.rows && source.shard().decoder->hidden == shard.decoder->hidden) {
    return absl::OkStatus();
  }
  return error(StatusCode::kInvalidArgument,
               "segment {} of the step before does not give {} rows of bfloat16 hidden states of {} values",
               segment.from_segment, segment.rows, shard.decoder->hidden);
}

}  // namespace

/// Steps whose rows another one begins with.
class StepRunner::Sources {
 public:
  Sources() = default;
  Sources(const Sources&) = delete;
  ~Sources() {
    for (LocalStep* one : lent_) one->take_back();
  }
  Status add(LocalStep& step) {
    if (std::ranges::find(lent_, &step) != lent_.end()) return absl::OkStatus();
    MESH_RETURN_IF_ERROR(step.lend());
    lent_.push_back(&step);
    return absl::OkStatus();
  }

 private:
  std::vector<LocalStep*> lent_;
};

Status StepRunner::join(LocalStep& step, const LayerRange& range, std::size_t index, bool staged,
                        Sources& sources) {
  const LoadedShard& shard = step.shard();
  const Segment& segment = step.segments()[index];
  MESH_RETURN_IF_ERROR(
      check_segment(segment, shard, range, shard.decoder->embedding_plan.positions.has_value()));
  LiveSegment live{.segment = &segment, .result = &step.result(index), .cache = {}, .hidden = segment.hidden};
  if (segment.from != nullptr) {
    auto& source = static_cast<LocalStep&>(*segment.from);
    MESH_RETURN_IF_ERROR(sources.add(source));
    MESH_RETURN_IF_ERROR(check_source(segment, source, shard));
    if (staged) live.device_rows = source.device_rows(segment.from_segment);
    if (live.device_rows == nullptr) MESH_RETURN_IF_ERROR(take_from_source(live));
  }
  MESH_ASSIGN_OR_RETURN(live.cache,
                        caches_.lend(segment.cache, shard.identity(), range, segment.start, segment.rows));
  const Position end = segment.start + segment.rows;
  if (const Status status = live.cache->make_writable(ops_, segment.start, end, caches_.faults());
      !status.ok()) {
    caches_.give_back(*live.cache, segment.start);
    return status;
  }
  step.live().push_back(std::move(live));
  return absl::OkStatus();
}

Status StepRunner::take_from_source(LiveSegment& live) {
  auto& source = static_cast<LocalStep&>(*live.segment->from);
  source.end_forward();
  const SegmentResult& result = source.result(live.segment->from_segment);
  live.device_rows = nullptr;
  live.hidden = result.hidden;
  return result.status;
}

void StepRunner::begin(LocalStep& step, const LayerRange& range) {
  const std::optional<StageModel> model = staged(step, range);
  Sources sources;
  for (std::size_t i = 0; i < step.segments().size(); ++i) {
    if (const Status status = join(step, range, i, model.has_value(), sources); !status.ok())
      step.result(i).status = status;
  }
  std::vector<LiveSegment>& live = step.live();
  for (std::size_t first = 0; first < live.size();) {
    std::size_t last = first;
    for (std::int64_t rows = 0; last < live.size(); ++last) {
      rows += live[last].segment->rows;
      if (last > first && rows > kForwardRows) break;
    }
    forward(step, range, model ? &*model : nullptr, std::span(live).subspan(first, last - first));
    first = last;
  }
}

/// A row of the forward whose next token is wanted.
struct StepRunner::SampledRow {
  LiveSegment* live;
  std::int32_t row;   // in the forward
  Position position;  // of the token to come
};

Status StepRunner::try_forward(LocalStep& step, const LayerRange& range, const StageModel* model,
                               std::span<LiveSegment> live) {
  step.end_forward();
  if (model != nullptr) return begin_staged(step, *model, live);
  ++op_forwards_;
  const Status status = compute(step.shard(), range, live);
  const Status finished = ops_.finish();
  return status.ok() ? finished : status;
}

void StepRunner::forward(LocalStep& step, const LayerRange& range, const StageModel* model,
                         std::span<LiveSegment> live) {
  const Status status = try_forward(step, range, model, live);
  if (status.code() == StatusCode::kResourceExhausted && live.size() > 1) {
    for (std::size_t i = 0; i < live.size(); ++i) {
      *live[i].result = {};
      forward(step, range, model, live.subspan(i, 1));
    }
    return;
  }
  if (step.ended()) step.settle(live, status);
}

Status StepRunner::compute(const LoadedShard& shard, const LayerRange& range, std::span<LiveSegment> live) {
  const DecoderSpec& spec = *shard.decoder;
  Forward forward{ops_, workspace_, spec, live.front().cache->layout(), {}, {}, {}, observer_};
  std::vector<Position> positions;
  for (LiveSegment& one : live) {
    one.first_row = static_cast<std::int64_t>(positions.size());
    append_positions(*one.segment, positions);
    forward.segments.push_back({.first_row = one.first_row,
                                .rows = one.segment->rows,
                                .start = one.segment->start,
                                .cache = one.cache.get(),
                                .mask = one.segment->mask ? one.segment->mask->additive.data() : nullptr});
  }
  MESH_ASSIGN_OR_RETURN(const Matrix x,
                        workspace_.matrix(Slot::kHidden, static_cast<std::int64_t>(positions.size()),
                                          std::int64_t{spec.hidden}));
  MESH_RETURN_IF_ERROR(read_input(forward, shard, live, positions, x));
  MESH_RETURN_IF_ERROR(set_rotation(forward, positions));
  for (std::uint32_t layer = range.begin; layer < range.end; ++layer) {
    MESH_RETURN_IF_ERROR(run_layer(forward, shard.layer(layer), layer, x));
  }
  std::vector<SampledRow> sampled;
  for (LiveSegment& one : live) {
    const Segment& segment = *one.segment;
    const Matrix rows = x.row_range(one.first_row, segment.rows);
    if (!ops_.all_finite(rows)) {
      one.result->status = not_finite(segment, "hidden states");
    } else if (segment.want == Want::kHidden) {
      read_hidden(segment, rows, one.result->hidden);
    } else if (segment.want == Want::kTokens) {
      for (const std::uint32_t row : sampled_rows(segment)) {
        sampled.push_back({&one, static_cast<std::int32_t>(one.first_row + row), segment.start + row + 1});
      }
    }
  }
  return sample_rows(forward, shard, sampled, x);
}

Status StepRunner::read_input(Forward& forward, const LoadedShard& shard, std::span<const LiveSegment> live,
                              std::span<const Position> positions, Matrix x) {
  for (const LiveSegment& one : live) {
    const Segment& segment = *one.segment;
    const Matrix rows = x.row_range(one.first_row, segment.rows);
    const std::string_view hidden = one.hidden;
    if (!segment.ids.empty()) {
      const auto own = positions.subspan(static_cast<std::size_t>(one.first_row), segment.rows);
      MESH_RETURN_IF_ERROR(
          run_embedding(forward, *shard.tokens, shard.positions.get(), segment.ids, own, rows));
    } else if (segment.hidden_type == HiddenType::kBfloat16) {
      ops_.upload_bf16(hidden.data(), rows);
    } else {
      ops_.upload({reinterpret_cast<const float*>(hidden.data()), hidden.size() / sizeof(float)}, rows.data);
    }
  }
  return absl::OkStatus();
}

void StepRunner::read_hidden(const Segment& segment, Matrix rows, std::string& hidden) {
  const auto values = static_cast<std::size_t>(rows.rows * rows.cols);
  if (segment.out_type == HiddenType::kBfloat16) {
    hidden.resize(values * sizeof(std::uint16_t));
    ops_.download_bf16(rows, hidden.data());
  } else {
    hidden.resize(values * sizeof(float));
    ops_.download(rows, reinterpret_cast<float*>(hidden.data()));
  }
}

Status StepRunner::sample_rows(Forward& forward, const LoadedShard& shard,
                               std::span<const SampledRow> sampled, Matrix x) {
  std::vector<float> logits;
  std::vector<std::int32_t> picked;
  for (std::size_t first = 0; first < sampled.size(); first += kHeadRows) {
    const auto some = sampled.subspan(first, std::min<std::size_t>(kHeadRows, sampled.size() - first));
    picked.clear();
    for (const SampledRow& one : some) picked.push_back(one.row);
    MESH_ASSIGN_OR_RETURN(const Matrix chosen,
                          workspace_.matrix(Slot::kRows, static_cast<std::int64_t>(some.size()), x.cols));
    ops_.gather_rows(x, picked, chosen);
    MESH_ASSIGN_OR_RETURN(const Matrix scores,
                          run_head(forward, *shard.final_norm, *shard.head_matrix, chosen));
    const auto vocab = static_cast<std::size_t>(scores.cols);
    logits.resize(some.size() * vocab);
    ops_.download(scores, logits.data());
    for (std::size_t i = 0; i < some.size(); ++i) {
      const Segment& segment = *some[i].live->segment;
      SegmentResult& result = *some[i].live->result;
      if (!ops_.all_finite(scores.row_range(static_cast<std::int64_t>(i), 1))) {
        result.status = not_finite(segment, "logits");
        continue;
      }
      const auto row = std::span(logits).subspan(i * vocab, vocab);
      result.tokens.push_back(sample(row, segment.sampling, some[i].position, segment.top));
      if (segment.want_logits) result.logits.insert(result.logits.end(), row.begin(), row.end());
    }
  }
  return absl::OkStatus();
}

}  // namespace mesh::engine
