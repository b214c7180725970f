#include "node/pipeline/kept_outputs.h"

#include <algorithm>

#include "node/pipeline/segment_rows.h"

namespace mesh::pipeline {

void KeptOutputs::append(wire::Segment output) {
  truncate(output.start);
  if (!empty() && end() != output.start) {
    chunks_.clear();
    bytes_ = 0;
  }
  bytes_ += output.raw_bytes();
  chunks_.push_back(std::move(output));
}

void KeptOutputs::truncate(Position position) {
  while (!empty() && chunks_.back().end() > position) {
    bytes_ -= chunks_.back().raw_bytes();
    if (chunks_.back().start < position) {
      chunks_.back() = slice_rows(chunks_.back(), chunks_.back().start, position);
      bytes_ += chunks_.back().raw_bytes();
      return;
    }
    chunks_.pop_back();
  }
}

void KeptOutputs::drop_before(Position position) {
  while (!empty() && chunks_.front().end() <= position) {
    bytes_ -= chunks_.front().raw_bytes();
    chunks_.pop_front();
  }
}

std::vector<wire::Segment> KeptOutputs::resend_from(Position position, std::uint32_t max_rows) const {
  std::vector<wire::Segment> segments;
  std::string merged;  // hidden states of segments.back() while it grows
  const auto close = [&] {
    if (!merged.empty()) segments.back().hidden = std::make_shared<const std::string>(std::move(merged));
    merged.clear();
  };
  for (const wire::Segment& chunk : chunks_) {
    if (chunk.end() <= position) continue;
    for (Position at = std::max(position, chunk.start); at < chunk.end();) {
      const Position to = std::min<Position>(chunk.end(), at + max_rows);
      wire::Segment part = slice_rows(chunk, at, to);
      at = to;
      if (!segments.empty() && can_merge(segments.back(), part, max_rows)) {
        if (merged.empty()) merged = *segments.back().hidden;
        merged += *part.hidden;
        segments.back().rows += part.rows;
        segments.back().sample = part.sample;
      } else {
        close();
        segments.push_back(std::move(part));
      }
    }
  }
  close();
  return segments;
}

}  // namespace mesh::pipeline
