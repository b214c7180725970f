#include "node/pipeline/outbound.h"

#include <algorithm>

#include "node/pipeline/segment_rows.h"

namespace mesh::pipeline {

void Outbound::restart() {
  items_.clear();
  unapplied_.clear();
  next_emit_.reset();
  last_ = counted_ = applied_ = Seq{};
  rows_out_ = 0;
  stopped_ = false;
}

void Outbound::trim(Position position) {
  if (next_emit_) next_emit_ = std::min(*next_emit_, position);
}

void Outbound::push(const wire::Segment& output, std::optional<TimePoint> deadline, bool replay) {
  if (!next_emit_ || output.end() <= *next_emit_ || output.start > *next_emit_) return;
  Item item{slice_rows(output, *next_emit_, output.end()), deadline, replay};
  next_emit_ = output.end();
  last_ = last_.next();
  item.segment.seq = last_;
  items_.push_back(std::move(item));
}

bool Outbound::fits(const wire::Segment& segment) const {
  return segment.seq.value <= applied_.value + window_.segments && rows_out_ + segment.rows <= window_.rows;
}

Outbound::Item* Outbound::next_to_send(wire::Lane lane, bool replay) {
  if (stopped_) return nullptr;
  // Places in the window are taken in the order of seq, whatever the lane: else a later segment could hold
  // the room that an earlier one needs.
  for (Item& item : items_) {
    const bool next = !item.in_flight && item.segment.lane == lane;
    if (next && item.replay != replay) return nullptr;
    if (item.segment.seq > counted_) {
      if (!fits(item.segment)) return nullptr;
      counted_ = item.segment.seq;
      unapplied_.push_back({counted_, item.segment.rows});
      rows_out_ += item.segment.rows;
    }
    if (next) {
      item.in_flight = true;
      return &item;
    }
  }
  return nullptr;
}

bool Outbound::waits(wire::Lane lane) const {
  return !stopped_ && std::any_of(items_.begin(), items_.end(), [&](const Item& item) {
    return !item.in_flight && item.segment.lane == lane;
  });
}

bool Outbound::replays_next(wire::Lane lane) const {
  const auto next = std::find_if(items_.begin(), items_.end(), [&](const Item& item) {
    return !item.in_flight && item.segment.lane == lane;
  });
  return !stopped_ && next != items_.end() && next->replay;
}

bool Outbound::blocked() const {
  if (stopped_ || items_.empty()) return false;
  const bool flying =
      std::any_of(items_.begin(), items_.end(), [](const Item& item) { return item.in_flight; });
  return !flying && items_.front().segment.seq > counted_ && !fits(items_.front().segment);
}

void Outbound::accepted(Seq seq) {
  std::erase_if(items_, [&](const Item& item) { return item.segment.seq == seq; });
}

void Outbound::put_back(Seq seq) {
  for (Item& item : items_) {
    if (item.segment.seq == seq) item.in_flight = false;
  }
}

void Outbound::credit(const wire::Cursor& cursor) {
  if (cursor.applied > last_) return;  // not of what we sent
  applied_ = std::max(applied_, cursor.applied);
  while (!unapplied_.empty() && unapplied_.front().seq <= applied_) {
    rows_out_ -= unapplied_.front().rows;
    unapplied_.pop_front();
  }
  std::erase_if(items_, [&](const Item& item) { return item.segment.seq <= applied_ && !item.in_flight; });
}

std::optional<Position> Outbound::first_unaccepted() const {
  if (items_.empty()) return next_emit_;
  Position first = items_.front().segment.start;
  for (const Item& item : items_) first = std::min(first, item.segment.start);
  return first;
}

}  // namespace mesh::pipeline
