#include "node/runtime/health.h"

#include <gtest/gtest.h>

#include <thread>

#include "common/identity/random.h"
#include "common/net/client.h"
#include "common/wire/frame.h"
#include "node/runtime/test_mesh.h"

namespace mesh {
namespace {

NodeOptions heard_by(NodeObserver& observer) {
  NodeOptions options;
  options.observer = &observer;
  return options;
}

/// A head, and two nodes of which the second one's metrics are read.
class NodeMetricsTest : public testing::Test {
 protected:
  NodeMetricsTest() {
    session_.id = random_id<SessionId>();
    session_.secret = random_id<SessionSecret>();
  }
  /// What the exposition text has behind the sample's name and labels.
  std::string value(const std::string& sample) {
    metrics_.update(tail_.node().figures());
    const std::string text = registry_.text();
    const std::size_t at = text.find("\n" + sample + " ");
    if (at == std::string::npos) return "no such sample";
    const std::size_t begin = at + sample.size() + 2;
    return text.substr(begin, text.find('\n', begin) - begin);
  }
  void post_frame(const std::string& body) {
    auto client = net::Client::make(tail_.url());
    ASSERT_TRUE(client.ok()) << client.status();
    ASSERT_TRUE((*client)->post(std::string(wire::kFramesRoute), body, wire::kFrameContentType).ok());
  }

  const ModelIdentity identity_ = random_id<ModelIdentity>();
  metrics::Registry registry_;
  NodeMetrics metrics_{registry_};
  TestHead head_{identity_};
  TestNode first_{identity_, {0, 3}};
  TestNode tail_{identity_, {3, FakeEngine::kLayers}, 0, heard_by(metrics_)};
  TestHead::Session session_;
};

TEST_F(NodeMetricsTest, EveryStepIsTimedUnderItsKind) {
  EXPECT_EQ(value("meshnet_step_seconds_count{kind=\"prefill\"}"), "0");
  head_.open(session_, {&first_, &tail_});
  head_.generate(session_, first_, {3, 5, 7}, 4);  // one prefill samples the first token
  EXPECT_EQ(value("meshnet_step_seconds_count{kind=\"prefill\"}"), "1");
  EXPECT_EQ(value("meshnet_step_seconds_count{kind=\"decode\"}"), "3");
}

TEST_F(NodeMetricsTest, KvBlocksGoBackToNoneWhenTheSessionEnds) {
  EXPECT_EQ(value("meshnet_kv_blocks_used"), "0");
  head_.open(session_, {&first_, &tail_});
  head_.generate(session_, first_, {3, 5, 7}, 2);
  EXPECT_EQ(value("meshnet_kv_blocks_used"), "1");  // the fake engine counts one a cache
  tail_.node().close({session_.id, session_.generation});
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + std::chrono::seconds(5);
  while (tail_.engine().open_caches() != 0 && clock.now() < deadline) std::this_thread::yield();
  EXPECT_EQ(value("meshnet_kv_blocks_used"), "0");
}

TEST_F(NodeMetricsTest, ReceivedBytesAreWhatTheOtherNodeSent) {
  head_.open(session_, {&first_, &tail_});
  head_.generate(session_, first_, {3, 5, 7}, 4);
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + std::chrono::seconds(5);  // the last answer may be on its way back
  while (first_.node().figures().links.at(0).frames < 4 && clock.now() < deadline) std::this_thread::yield();
  const std::uint64_t sent = first_.node().figures().links.at(0).wire_bytes;
  EXPECT_GT(sent, 0u);
  EXPECT_EQ(value("meshnet_received_wire_bytes_total"), std::to_string(sent));
}

TEST_F(NodeMetricsTest, RefusedFramesAreCountedByReason) {
  post_frame("nonsense");
  wire::Segment segment;
  segment.session = random_id<SessionId>();
  segment.identity = identity_;
  segment.generation = Generation{5};
  segment.seq = {1};
  segment.range = tail_.layers();
  segment.rows = 1;
  segment.hidden_size = FakeEngine::kHidden;
  segment.hidden = std::make_shared<const std::string>(FakeEngine::kHidden * 2, '\x11');
  wire::FrameWriter writer;
  wire::HiddenCodec codec;
  writer.add(segment, random_id<SessionSecret>(), wire::Codec::kIdentity, codec);
  post_frame(writer.finish());
  EXPECT_EQ(value("meshnet_frames_refused_total{reason=\"malformed\"}"), "1");
  EXPECT_EQ(value("meshnet_frames_refused_total{reason=\"unknown_session\"}"), "1");
  EXPECT_EQ(value("meshnet_frames_refused_total{reason=\"bad_mac\"}"), "0");
}

}  // namespace
}  // namespace mesh
