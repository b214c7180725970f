#pragma once

#include <optional>

#include "common/base/clock.h"

namespace mesh::pipeline {

/// How much of the way to one next hop resent rows may take: all of it while nothing else goes there, else a
/// tenth of its time, one frame after the other, so that running sessions hardly notice one that is refilled.
/// A frame takes the way for as long as its answer comes later than the quickest one did.
class ReplayPace {
 public:
  static constexpr int kShare = 10;
  /// Something else must not have gone for so long.
  static constexpr Duration kQuiet = std::chrono::seconds(1);

  void other_sent(TimePoint now) { last_other_ = now; }
  void replay_sent() { ++replays_; }
  /// `took`: from sending to the answer.
  void other_answered(Duration took, TimePoint now);
  void replay_answered(Duration took, TimePoint now);

  bool busy(TimePoint now) const { return last_other_ && now - *last_other_ < kQuiet; }
  bool may_replay(TimePoint now) const { return !busy(now) || (replays_ == 0 && now >= not_before_); }
  /// When may_replay() becomes true if nothing happens; none when only an answer helps, or when it is.
  std::optional<TimePoint> resumes(TimePoint now) const;
  /// Says nothing any more.
  bool forgotten(TimePoint now) const { return replays_ == 0 && !busy(now); }

 private:
  Duration on_the_way(Duration took);

  std::optional<TimePoint> last_other_;
  std::optional<Duration> quickest_;
  TimePoint not_before_{};
  int replays_ = 0;  ///< frames in flight
};

}  // namespace mesh::pipeline
