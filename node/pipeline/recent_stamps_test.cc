#include "node/pipeline/recent_stamps.h"

#include "node/pipeline/hop_fixture_for_test.h"

namespace mesh::pipeline {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A hop as the routes guard it: an opening reaches the table only when it is fresh.
class Replay : public HopFixture {
 protected:
  struct Message {
    wire::OpenRequest request;
    wire::Freshness fresh;
  };

  void beat() { stamps.sent({start, ++number}, now); }
  Message opening(std::uint8_t session_number = 1, Generation generation = {1}) const {
    wire::OpenRequest request = middle(generation);
    request.session = session(session_number);
    return {request, {self, {start, number}}};
  }
  bool opens(const Message& message) {
    return stamps.check(message.fresh, now).ok() && open(message.request).opened();
  }
  /// Lets time pass with heartbeats, tries `recorded` every second; how often it opened something.
  int opened_by_replay(const Message& recorded, Duration time) {
    int opened = 0;
    for (const TimePoint end = now + time; now < end; now += seconds(1)) {
      beat();
      table.tick(now);
      const std::size_t before = table.stats().sessions;
      opens(recorded);
      opened += table.stats().sessions > before;
    }
    return opened;
  }

  static NodeId node(std::uint8_t number) {
    NodeId id;
    id.bytes[0] = number;
    return id;
  }
  const NodeId self = node(7);
  std::uint64_t start = 4, number = 0;
  RecentStamps stamps{self};
};

TEST_F(Replay, OfAClosedSessionsOpeningMeetsTheTombstoneOrIsTooOld) {
  beat();
  const Message recorded = opening();
  ASSERT_TRUE(opens(recorded));
  table.close({session(1), {1}}, now);
  EXPECT_EQ(opened_by_replay(recorded, seconds(200)), 0);
  EXPECT_EQ(table.stats().cache_bytes, 0u);
}

TEST_F(Replay, OfAnOpeningWhoseLeaseEndedOpensNothing) {
  beat();
  const Message recorded = opening();
  now += seconds(2);
  ASSERT_TRUE(opens(recorded));
  EXPECT_EQ(opened_by_replay(recorded, seconds(200)), 0);
  EXPECT_EQ(table.stats().sessions, 0u) << "replays keep no session alive";
}

TEST_F(Replay, AfterARestartOfTheNodeIsRefused) {
  beat();
  const Message recorded = opening();
  RecentStamps after(self);
  after.sent({start + 1, 1}, now);
  EXPECT_FALSE(after.check(recorded.fresh, now).ok());
  EXPECT_TRUE(after.check({self, {start + 1, 1}}, now).ok());
}

TEST_F(Replay, AtAnotherNodeIsRefused) {
  beat();
  EXPECT_FALSE(stamps.check({node(8), {start, number}}, now).ok());
}

TEST_F(Replay, OfAStampNeverSentIsRefused) {
  beat();
  EXPECT_FALSE(stamps.check({self, {start, number + 1}}, now).ok());
  EXPECT_FALSE(stamps.check({self, {start - 1, number}}, now).ok());
  EXPECT_FALSE(stamps.check({}, now).ok());
}

TEST_F(Replay, AGenuineOpeningIsTakenForThirtySeconds) {
  beat();
  const Message late = opening();
  now += seconds(30);
  beat();
  EXPECT_TRUE(stamps.check(late.fresh, now).ok());
  now += milliseconds(1);
  EXPECT_FALSE(stamps.check(late.fresh, now).ok());
}

TEST_F(Replay, OpeningsThatOvertakeEachOtherAreAllTaken) {
  std::vector<Message> sent;
  for (std::uint8_t i = 1; i <= 6; ++i) {
    if (i % 2 == 1) beat();
    sent.push_back(opening(i));
    now += seconds(1);
  }
  for (auto message = sent.rbegin(); message != sent.rend(); ++message) EXPECT_TRUE(opens(*message));
  EXPECT_EQ(table.stats().sessions, 6u);
}

}  // namespace
}  // namespace mesh::pipeline
