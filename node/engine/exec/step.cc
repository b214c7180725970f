#include "node/engine/exec/step.h"

#include <algorithm>
#include <utility>

#include "node/engine/exec/segment_checks.h"
#include "node/engine/exec/segment_rows.h"
#include "node/engine/layers/forward.h"
#include "node/engine/sampling/sampler.h"

namespace mesh::engine {
StatusOr<std::vector<SegmentResult>> StepRunner::run(const LoadedShard& shard, const LayerRange& range,
                                                     std::span<const Segment> segments) {
  std::vector<SegmentResult> results(segments.size());
  std::vector<Live> live;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    Status& status = results[i].status;
    status = check_segment(segment, shard, range, shard.decoder->embedding_plan.positions.has_value());
    if (!status.ok()) continue;
    auto cache = caches_.lend(segment.cache, shard.identity(), range, segment.start, segment.rows);
    status = cache.status();
    if (!status.ok()) continue;
    if (status = (*cache)->make_writable(ops_, segment.start, segment.start + segment.rows, caches_.faults());
        !status.ok()) {
      caches_.give_back(**cache, segment.start);
      continue;
    }
    live.push_back({&segment, &results[i], *std::move(cache)});
  }
  for (std::size_t first = 0; first < live.size();) {
    std::size_t last = first;
    for (std::int64_t rows = 0; last < live.size(); ++last) {
      rows += live[last].segment->rows;
      if (last > first && rows > kForwardRows) break;
    }
    forward(shard, range, std::span(live).subspan(first, last - first));
    first = last;
  }
  return results;
}

/// A row of the forward whose next token is wanted.
struct StepRunner::SampledRow {
  Live* live;
  std::int32_t row;   // in the forward
  Position position;  // of the token to come
};

Status StepRunner::try_forward(const LoadedShard& shard, const LayerRange& range, std::span<Live> live) {
  if (const std::optional<StageModel> model = staged(shard, range, live)) return compute_staged(*model, live);
  ++op_forwards_;
  const Status status = compute(shard, range, live);
  const Status finished = ops_.finish();
  return status.ok() ? finished : status;
}

void StepRunner::forward(const LoadedShard& shard, const LayerRange& range, std::span<Live> live) {
  const Status status = try_forward(shard, range, live);
  if (status.code() == StatusCode::kResourceExhausted && live.size() > 1) {
    for (std::size_t i = 0; i < live.size(); ++i) {
      *live[i].result = {};
      forward(shard, range, live.subspan(i, 1));
    }
    return;
  }
  for (Live& one : live) {
    SegmentResult& result = *one.result;
    if (!status.ok()) result.status = status;
    if (!result.status.ok()) result = {.status = result.status, .hidden = {}, .tokens = {}, .logits = {}};
    const Segment& segment = *one.segment;
    caches_.give_back(*one.cache, result.status.ok() ? segment.start + segment.rows : segment.start);
  }
}

Status StepRunner::compute(const LoadedShard& shard, const LayerRange& range, std::span<Live> live) {
  const DecoderSpec& spec = *shard.decoder;
  Forward forward{ops_, workspace_, spec, live.front().cache->layout(), {}, {}, {}, observer_};
  std::vector<Position> positions;
  for (Live& one : live) {
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
  for (Live& one : live) {
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

Status StepRunner::read_input(Forward& forward, const LoadedShard& shard, std::span<const Live> live,
                              std::span<const Position> positions, Matrix x) {
  for (const Live& one : live) {
    const Segment& segment = *one.segment;
    const Matrix rows = x.row_range(one.first_row, segment.rows);
    const std::string& hidden = segment.hidden;
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
