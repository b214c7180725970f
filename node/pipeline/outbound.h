#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/wire/segment.h"

namespace mesh::pipeline {

/// One session's segments on the way to its next hop: numbered, within the receiver's window, until accepted.
class Outbound {
 public:
  explicit Outbound(wire::Window window) : window_(window) {}

  struct Item {
    wire::Segment segment;
    std::optional<TimePoint> deadline;
    bool replay = false;
    bool in_flight = false;
  };

  /// A new generation: nothing is outstanding, seq starts anew, and nothing is sent before emit_from() is
  /// known.
  void restart();
  /// Positions below are not sent.
  void set_emit_from(Position position) { next_emit_ = position; }
  bool held() const { return !next_emit_.has_value(); }
  /// The cache was trimmed to `position`: what follows is sent anew.
  void trim(Position position);
  /// The part of `output` that the next hop wants joins the queue; its seq is given here. `replay`: it was
  /// sent before, in another generation.
  void push(const wire::Segment& output, std::optional<TimePoint> deadline, bool replay = false);

  /// The next segment of `lane` that may go now, marked as in flight; none when nothing waits, when the
  /// window is full, or when the next one is a replay and `replay` is false, or the other way round.
  Item* next_to_send(wire::Lane lane, bool replay = false);
  bool waits(wire::Lane lane) const;
  /// A replay is the next segment of `lane`.
  bool replays_next(wire::Lane lane) const;
  /// Segments wait, none is in flight, and the window is full: only the receiver's cursor helps.
  bool blocked() const;
  /// Accepted: the receiver owns it now.
  void accepted(Seq seq);
  void put_back(Seq seq);
  /// The receiver's cursor of this generation.
  void credit(const wire::Cursor& cursor);

  /// The session cannot go on with this next hop in this generation.
  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }
  /// The lowest position that was not yet accepted by the next hop; what lies above must be kept.
  std::optional<Position> first_unaccepted() const;

 private:
  struct Unapplied {
    Seq seq;
    std::uint32_t rows = 0;
  };
  bool fits(const wire::Segment& segment) const;

  wire::Window window_;
  std::deque<Item> items_;           ///< not accepted, in the order of seq
  std::deque<Unapplied> unapplied_;  ///< counted, not known to be applied
  std::optional<Position> next_emit_;
  Seq last_;     ///< given out
  Seq counted_;  ///< has its place in the window
  Seq applied_;
  std::uint64_t rows_out_ = 0;  ///< of unapplied_
  bool stopped_ = false;
};

}  // namespace mesh::pipeline
