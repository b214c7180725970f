#include "node/pipeline/inbound.h"

namespace mesh::pipeline {
namespace {

ArrivedSegment arrived(wire::Segment segment, TimePoint now) {
  std::optional<TimePoint> deadline;
  if (segment.deadline_ms != 0) deadline = now + std::chrono::milliseconds(segment.deadline_ms);
  return {std::move(segment), deadline};
}

}  // namespace

void Inbound::restart(Position next) {
  queue_.clear();
  early_.clear();
  received_ = applied_ = Seq{};
  end_ = next;
  rows_held_ = 0;
  broken_ = false;
}

wire::AnswerCode Inbound::accept(wire::Segment segment, TimePoint now, bool* duplicate) {
  using wire::AnswerCode;
  *duplicate = segment.seq <= received_ || early_.contains(segment.seq);
  if (*duplicate && !faults_.apply_duplicates) return AnswerCode::kAccepted;
  if (broken_) return AnswerCode::kGap;
  if (segment.seq.value > applied_.value + window_.segments) return AnswerCode::kWindow;
  if (rows_held_ + segment.rows > window_.rows) return AnswerCode::kWindow;
  if (*duplicate || (faults_.accept_gaps && segment.seq != received_.next())) {
    if (*duplicate) segment.start = end_;
    if (!*duplicate) received_ = segment.seq;
    end_ = segment.end();
    rows_held_ += segment.rows;
    queue_.push_back(arrived(std::move(segment), now));
    return AnswerCode::kAccepted;
  }
  if (segment.seq != received_.next()) {
    rows_held_ += segment.rows;
    const Seq seq = segment.seq;
    early_.emplace(seq, arrived(std::move(segment), now));
    return AnswerCode::kAccepted;
  }
  if (segment.start > end_ && !faults_.accept_gaps) return AnswerCode::kGap;
  rows_held_ += segment.rows;
  queue(std::move(segment), now);
  for (auto it = early_.begin(); it != early_.end() && it->first == received_.next(); it = early_.erase(it)) {
    if (it->second.segment.start > end_) {
      broken_ = true;
      break;
    }
    received_ = it->first;
    end_ = it->second.segment.end();
    queue_.push_back(std::move(it->second));
  }
  return AnswerCode::kAccepted;
}

void Inbound::queue(wire::Segment segment, TimePoint now) {
  received_ = segment.seq;
  end_ = segment.end();
  queue_.push_back(arrived(std::move(segment), now));
}

ArrivedSegment Inbound::take() {
  ArrivedSegment next = std::move(queue_.front());
  queue_.pop_front();
  rows_held_ -= next.segment.rows;
  if (next.segment.seq > applied_) applied_ = next.segment.seq;
  return next;
}

}  // namespace mesh::pipeline
