#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "common/wire/segment.h"

namespace mesh::pipeline {

/// One session's outputs at a hop, consecutive positions [from(), end()), kept so that they can be sent
/// again.
class KeptOutputs {
 public:
  bool empty() const { return chunks_.empty(); }
  Position from() const { return chunks_.front().start; }
  Position end() const { return chunks_.back().end(); }
  std::uint64_t bytes() const { return bytes_; }

  /// Replaces what was kept from output.start on. Outputs that leave a hole behind what is kept drop the
  /// older ones.
  void append(wire::Segment output);
  /// Forgets positions ≥ `position`.
  void truncate(Position position);
  /// Forgets whole chunks that end at or before `position`.
  void drop_before(Position position);
  /// Positions [position, end()) as segments of at most `max_rows` rows, small neighbours merged.
  std::vector<wire::Segment> resend_from(Position position, std::uint32_t max_rows) const;

 private:
  std::deque<wire::Segment> chunks_;
  std::uint64_t bytes_ = 0;
};

}  // namespace mesh::pipeline
