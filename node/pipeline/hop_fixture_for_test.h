#pragma once

#include <gtest/gtest.h>

#include "node/pipeline/hop_table.h"

namespace mesh::pipeline {

/// One hop table with hidden size 2 and helpers that speak for the head, the neighbours and the engine.
class HopFixture : public testing::Test {
 protected:
  static constexpr std::uint32_t kHidden = 2;

  static wire::OpenRequest middle(Generation generation = {1}) {
    wire::OpenRequest r;
    r.session = session(1);
    r.generation = generation;
    r.range = {4, 8};
    r.max_tokens = 1000;
    r.next = wire::HopAddress{{}, "http://next", {8, 12}};
    r.head_url = "http://head";
    r.emit_from = 0;
    return r;
  }
  static wire::OpenRequest tail(Generation generation = {1}) {
    wire::OpenRequest r = middle(generation);
    r.next.reset();
    r.tail = wire::TailSetup{};
    return r;
  }
  static SessionId session(std::uint8_t number) {
    SessionId id;
    id.bytes[0] = number;
    return id;
  }
  static ShardView view(const wire::OpenRequest& r) { return {kHidden, 8, 2000, r.tail.has_value()}; }

  wire::OpenReply open(const wire::OpenRequest& r) { return table.open(r, view(r), now); }

  static wire::Segment segment(std::uint64_t seq, Position start, std::uint32_t rows,
                               Generation generation = {1}) {
    wire::Segment s;
    s.session = session(1);
    s.generation = generation;
    s.seq = {seq};
    s.range = {4, 8};
    s.start = start;
    s.rows = rows;
    s.hidden_size = kHidden;
    s.lane = rows > 1 ? wire::Lane::kBulk : wire::Lane::kDecode;
    s.sample = true;
    s.hidden = std::make_shared<const std::string>(std::string(std::size_t{rows} * 2 * kHidden, 'x'));
    return s;
  }
  wire::AnswerCode accept(const wire::Segment& s) { return table.accept(s, now).code; }

  /// The engine's answer to `work`: rows that name their positions, and token 100 + position at the tail.
  static StepOutput result(const StepWork& work) {
    StepOutput output{work.id, {}};
    for (const StepSegment& s : work.segments) {
      SegmentOutput out;
      if (work.ends_model) {
        if (s.sample) out.token = SampledToken{static_cast<TokenId>(100 + s.start + s.rows), -0.5f};
      } else {
        std::string rows;
        for (Position p = s.start; p < s.start + s.rows; ++p) rows += row(p);
        out.hidden = std::make_shared<const std::string>(rows);
      }
      output.segments.push_back(std::move(out));
    }
    return output;
  }
  static std::string row(Position p) { return {static_cast<char>(p), static_cast<char>(p >> 8), 'r', 'w'}; }
  /// Runs every step that is ready; how many.
  int run_steps() {
    int count = 0;
    while (const auto work = table.next_step(now)) {
      table.step_done(result(*work), now);
      ++count;
    }
    return count;
  }
  wire::SegmentAnswer answer(const wire::Segment& s, wire::AnswerCode code, Seq applied = {0}) const {
    return {{s.session, s.range.begin}, s.seq, code, {s.generation, applied, s.end()}};
  }
  /// Sends everything that may go now, all accepted at once; "start+rows" of each segment.
  std::string send_all() {
    std::string sent;
    while (const auto frame = table.next_frame(now)) {
      std::vector<wire::SegmentAnswer> answers;
      for (const OutSegment& out : frame->segments) {
        sent += std::to_string(out.segment.start) + "+" + std::to_string(out.segment.rows) + " ";
        answers.push_back(answer(out.segment, wire::AnswerCode::kAccepted));
      }
      table.frame_answered(frame->id, answers, now);
    }
    return sent;
  }
  std::vector<CacheId> freed() {
    std::vector<CacheId> caches;
    for (const CacheOrder& order : table.take_orders()) {
      if (const auto* free = std::get_if<FreeCache>(&order)) caches.push_back(free->cache);
    }
    return caches;
  }
  wire::CursorEntry cursor() { return table.cursors({{{session(1), 4}}}).hops[0]; }

  HopOptions options;
  TimePoint now = TimePoint{} + std::chrono::hours(1);
  HopTable table{options};
};

}  // namespace mesh::pipeline
