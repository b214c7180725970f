#include "node/pipeline/replay_pace.h"

#include <algorithm>

namespace mesh::pipeline {

Duration ReplayPace::on_the_way(Duration took) {
  quickest_ = std::min(took, quickest_.value_or(took));
  return took - *quickest_;
}

void ReplayPace::other_answered(Duration took, TimePoint now) {
  last_other_ = now;
  on_the_way(took);
}

void ReplayPace::replay_answered(Duration took, TimePoint now) {
  --replays_;
  not_before_ = now + (kShare - 1) * on_the_way(took);
}

std::optional<TimePoint> ReplayPace::resumes(TimePoint now) const {
  if (may_replay(now)) return std::nullopt;
  const TimePoint quiet = last_other_.value_or(now) + kQuiet;
  return replays_ > 0 ? quiet : std::min(quiet, not_before_);
}

}  // namespace mesh::pipeline
