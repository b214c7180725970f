#include "node/pipeline/replay_pace.h"

#include "node/pipeline/hop_fixture_for_test.h"

namespace mesh::pipeline {
namespace {

using std::chrono::milliseconds;
using wire::AnswerCode;
using wire::Lane;

/// Session 1's 512 outputs are to be sent again, in four segments of 128 rows; session 2 is a stranger to it.
class ReplayPaceTest : public HopFixture {
 protected:
  void SetUp() override {
    open(middle());
    for (std::uint64_t seq = 1; seq <= 4; ++seq)
      accept(segment(seq, static_cast<Position>(seq - 1) * 128, 128));
    run_steps();
    send_all();
    now += ReplayPace::kQuiet;
    table.tick(now);  // it forgets how quick the answers were
    other_ = middle();
    other_.session = session(2);
    open(other_);
    open(middle({2}));
  }
  /// A row, or a prompt's chunk, of session 2 is computed.
  void compute_other(std::uint32_t rows) {
    wire::Segment s = segment(++seq_, at_, rows);
    s.session = session(2);
    accept(s);
    at_ += rows;
    run_steps();
  }
  void answer_frame(const OutFrame& frame) {
    std::vector<wire::SegmentAnswer> answers;
    for (const OutSegment& out : frame.segments)
      answers.push_back(answer(out.segment, AnswerCode::kAccepted, out.segment.seq));
    table.frame_answered(frame.id, answers, now);
  }
  /// The next frame goes out and its answer comes after `took`.
  std::size_t exchange(milliseconds took) {
    const auto frame = table.next_frame(now);
    if (!frame) return 0;
    now += took;
    answer_frame(*frame);
    return frame->segments.size();
  }

  wire::OpenRequest other_;
  std::uint64_t seq_ = 0;
  Position at_ = 0;
};

TEST_F(ReplayPaceTest, TakesALinkThatNobodyElseUsesWhole) {
  EXPECT_EQ(exchange(milliseconds(50)), 4u);
}

TEST_F(ReplayPaceTest, OnABusyLinkGoesBehindTheOthersOneSegmentAtATime) {
  compute_other(100);
  const auto first = table.next_frame(now);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->segments[0].segment.session, session(2));
  const auto second = table.next_frame(now);
  ASSERT_TRUE(second);
  ASSERT_EQ(second->segments.size(), 1u);
  EXPECT_EQ(second->segments[0].segment.session, session(1));
  answer_frame(*first);
  EXPECT_FALSE(table.next_frame(now)) << "one is on its way";
}

TEST_F(ReplayPaceTest, TakesATenthOfABusyLinksTime) {
  compute_other(1);
  EXPECT_EQ(exchange(milliseconds(5)), 1u) << "a row, on its lane; 5 ms are the way there and back";
  EXPECT_EQ(exchange(milliseconds(15)), 1u) << "resent rows, that took 10 ms more";
  EXPECT_FALSE(table.next_frame(now));
  EXPECT_EQ(table.next_wakeup(), now + milliseconds(90));
  now += milliseconds(89);
  EXPECT_FALSE(table.next_frame(now));
  compute_other(100);
  EXPECT_EQ(exchange(milliseconds(5)), 1u) << "others need not wait for it";
  EXPECT_EQ(exchange(milliseconds(5)), 1u) << "the pause is over";
}

TEST_F(ReplayPaceTest, GoesAtFullSpeedWhenTheOthersHaveEnded) {
  compute_other(1);
  EXPECT_EQ(exchange(milliseconds(5)), 1u);
  EXPECT_EQ(exchange(milliseconds(1000)), 1u);
  EXPECT_EQ(exchange(milliseconds(5)), 3u);
}

}  // namespace
}  // namespace mesh::pipeline
