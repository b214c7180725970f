#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "common/base/clock.h"
#include "common/wire/segment.h"
#include "node/pipeline/hop_faults.h"

namespace mesh::pipeline {

struct ArrivedSegment {
  wire::Segment segment;
  std::optional<TimePoint> deadline;
};

/// What a hop has of one session and has not begun to compute: segments in the order of seq within the
/// window.
class Inbound {
 public:
  Inbound(wire::Window window, HopFaults faults) : window_(window), faults_(faults) {}

  /// A new generation: seq starts anew, what was queued is dropped (its sender will send it again).
  void restart(Position next);
  /// kAccepted (queued, or a duplicate), kWindow or kGap. `duplicate` tells which.
  wire::AnswerCode accept(wire::Segment segment, TimePoint now, bool* duplicate);
  /// A segment that waited for an earlier seq turned out to leave a hole: the session cannot go on in this
  /// generation.
  bool broken() const { return broken_; }
  void mark_broken() { broken_ = true; }

  const ArrivedSegment* front() const { return queue_.empty() || broken_ ? nullptr : &queue_.front(); }
  /// Takes the front: from now on it counts as applied.
  ArrivedSegment take();
  Seq applied() const { return applied_; }
  std::size_t waiting() const { return queue_.size() + early_.size(); }

 private:
  void queue(wire::Segment segment, TimePoint now);

  wire::Window window_;
  HopFaults faults_;
  std::deque<ArrivedSegment> queue_;
  std::map<Seq, ArrivedSegment> early_;  ///< beyond received_ + 1
  Seq received_;
  Seq applied_;
  Position end_ = 0;  ///< of what was queued last
  std::uint64_t rows_held_ = 0;
  bool broken_ = false;
};

}  // namespace mesh::pipeline
