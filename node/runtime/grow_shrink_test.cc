#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>

#include "common/hub/open_model.h"
#include "common/identity/random.h"
#include "node/engine/testing/golden.h"
#include "node/node.h"

// A node's shards grow and shrink on the real engine while eight sessions stream. Time is counted in steps.
namespace mesh {
namespace {

using engine::testing::golden_folder;

constexpr std::string_view kLocal = "http://127.0.0.1:1";
constexpr LayerRange kUpper{3, 6}, kWhole{0, 6};
constexpr std::size_t kStreams = 8;
constexpr std::uint32_t kHidden = 128;
constexpr Duration kPatience = std::chrono::seconds(60);  // of a test that has failed

/// Numbers steps, and notes in which one each row of each stream ran. A stream's rows begin with its number.
class NumberedSteps final : public engine::Engine {
 public:
  explicit NumberedSteps(std::unique_ptr<engine::Engine> inner) : inner_(std::move(inner)) {}

  std::uint64_t begun() const {
    const std::lock_guard lock(mutex_);
    return begun_;
  }
  /// Of the row at `position` when it ran for the `time`-th time.
  std::uint64_t step_of(std::size_t stream, Position position, std::size_t time) const {
    const std::lock_guard lock(mutex_);
    return ran_.at({stream, position}).at(time);
  }

  engine::Device device() const override { return inner_->device(); }
  engine::ComputeType compute() const override { return inner_->compute(); }
  const engine::DeviceNote& device_note() const override { return inner_->device_note(); }
  StatusOr<engine::ShardNeeds> shard_needs(hub::Checkpoint& checkpoint, const ModelIdentity& identity,
                                           const engine::ShardSpec& spec) const override {
    return inner_->shard_needs(checkpoint, identity, spec);
  }
  StatusOr<std::shared_ptr<const engine::Shard>> load(hub::Checkpoint& checkpoint,
                                                      const ModelIdentity& identity,
                                                      const engine::ShardSpec& spec,
                                                      const engine::ProgressCallback& progress) override {
    return inner_->load(checkpoint, identity, spec, progress);
  }
  std::unique_ptr<engine::CachePromise> promise_caches() override { return inner_->promise_caches(); }
  std::uint64_t cache_bytes_per_token(const engine::Shard& shard, const LayerRange& range) const override {
    return inner_->cache_bytes_per_token(shard, range);
  }
  StatusOr<engine::CacheId> open_cache(const std::shared_ptr<const engine::Shard>& shard,
                                       const LayerRange& range, Position max_positions) override {
    return inner_->open_cache(shard, range, max_positions);
  }
  Status trim(engine::CacheId cache, Position position) override { return inner_->trim(cache, position); }
  StatusOr<std::uint64_t> spill(engine::CacheId cache) override { return inner_->spill(cache); }
  StatusOr<std::uint64_t> restore(engine::CacheId cache) override { return inner_->restore(cache); }
  void close_cache(engine::CacheId cache) override { inner_->close_cache(cache); }
  StatusOr<engine::CacheState> cache_state(engine::CacheId cache) const override {
    return inner_->cache_state(cache);
  }
  engine::MemoryUse memory() const override { return inner_->memory(); }
  StatusOr<std::vector<engine::SegmentResult>> step(const std::shared_ptr<const engine::Shard>& shard,
                                                    const LayerRange& range,
                                                    std::span<const engine::Segment> segments) override {
    {
      const std::lock_guard lock(mutex_);
      ++begun_;
      for (const engine::Segment& segment : segments) {
        ran_[{static_cast<std::size_t>(segment.hidden[2]), segment.start}].push_back(begun_);
      }
    }
    return inner_->step(shard, range, segments);
  }

 private:
  const std::unique_ptr<engine::Engine> inner_;
  mutable std::mutex mutex_;
  std::uint64_t begun_ = 0;
  std::map<std::pair<std::size_t, Position>, std::vector<std::uint64_t>> ran_;
};

/// One value in bfloat16, from its upper half: 1.0 … 1.98.
std::string row_of(std::size_t stream, Position position) {
  std::string row(2 * kHidden, '\0');
  for (std::uint32_t i = 0; i < kHidden; ++i) {
    const std::uint32_t value =
        0x3f80u + (i == 1 ? static_cast<std::uint32_t>(stream)
                          : (position * 31 + i * 7 + static_cast<std::uint32_t>(stream)) % 127);
    row[2 * i] = static_cast<char>(value & 0xff);
    row[2 * i + 1] = static_cast<char>(value >> 8);
  }
  row[2] = static_cast<char>(stream);
  row[3] = 0x3f;
  return row;
}

class GrowAndShrink : public testing::Test, public HeadSink {
 protected:
  static std::unique_ptr<engine::Engine> make_engine() {
    engine::EngineOptions options;
    options.device = engine::Device::kCpu;
    options.compute = engine::ComputeType::kFloat32;
    options.threads = 1;
    options.memory_bytes = std::uint64_t{512} << 20;
    options.spill_bytes = std::uint64_t{64} << 20;
    return *engine::Engine::create(options);
  }
  static std::shared_ptr<hub::Checkpoint> checkpoint(const char* name) {
    return engine::testing::open_checkpoint(golden_folder(name));
  }
  void start(pipeline::HopOptions hop = {}) {
    auto steps = std::make_unique<NumberedSteps>(make_engine());
    steps_ = steps.get();
    NodeOptions options;
    options.local_head_url = kLocal;
    options.hop = hop;
    node_ = Node::start(std::move(options), std::move(steps), this);
    ASSERT_TRUE(node_->load_shard(checkpoint("tiny-llama"), model_, {kUpper, false, true}, {}).ok());
    for (std::size_t i = 0; i < kStreams; ++i) {
      wire::OpenRequest open;
      open.session = sessions_.emplace_back(random_id<SessionId>());
      open.generation = {1};
      open.identity = model_;
      open.range = kUpper;
      open.max_tokens = kMost;
      open.head_url = kLocal;
      open.emit_from = 0;
      open.tail = wire::TailSetup{};
      ASSERT_TRUE(node_->open(open).opened());
      texts_.emplace_back();
    }
    for (std::size_t i = 0; i < kStreams; ++i) send(i, 0);
  }
  void TearDown() override {
    if (node_ != nullptr) node_->stop();
  }

  /// The stream's next row; after kMost rows it begins anew.
  void send(std::size_t stream, std::size_t number) {
    const auto position = static_cast<Position>(number % kMost);
    Arrival arrival;
    wire::Segment& s = arrival.segment;
    s.session = sessions_[stream];
    s.identity = model_;
    s.generation = {1};
    s.seq = {number + 1};
    s.range = kUpper;
    s.start = position;
    s.rows = 1;
    s.hidden_size = kHidden;
    s.sample = true;
    s.hidden = std::make_shared<const std::string>(row_of(stream, position));
    node_->accept({std::move(arrival)});
    // Not before: until then this thread may have been the one that waited.
    const std::uint64_t begun = steps_->begun();
    const std::lock_guard lock(mutex_);
    given_[{stream, number}] = begun;
  }
  std::vector<wire::TokenAnswer> on_tokens(const std::vector<wire::TokenMessage>& tokens) override {
    std::vector<wire::TokenAnswer> answers;
    std::vector<std::pair<std::size_t, std::size_t>> next;
    {
      const std::lock_guard lock(mutex_);
      for (const wire::TokenMessage& one : tokens) {
        answers.push_back({one.session, one.position, wire::TokenCode::kTaken});
        const auto stream = static_cast<std::size_t>(
            std::find(sessions_.begin(), sessions_.end(), one.session) - sessions_.begin());
        if (one.position != texts_[stream].size() % kMost + 1) continue;  // repeated
        texts_[stream].push_back(one.token);
        if (!enough_) next.emplace_back(stream, texts_[stream].size());
      }
    }
    changed_.notify_all();
    for (const auto& [stream, number] : next) send(stream, number);
    return answers;
  }
  void on_report(const wire::Report& report) override {
    const std::lock_guard lock(mutex_);
    reports_ += report.message + "; ";
  }
  void on_cursor(const wire::CursorEntry&) override {}

  /// Waits until every stream has two tokens more; false when one stands still.
  bool every_stream_goes_on() {
    std::unique_lock lock(mutex_);
    std::vector<std::size_t> before;
    for (const auto& text : texts_) before.push_back(text.size());
    return changed_.wait_for(lock, kPatience, [&] {
      for (std::size_t i = 0; i < kStreams; ++i) {
        if (texts_[i].size() < before[i] + 2) return false;
      }
      return true;
    });
  }
  /// Loads, while at every report of progress every stream gets on: a load that held steps up would never
  /// end.
  void load(const char* name, const ModelIdentity& identity, const engine::ShardSpec& spec) {
    int reports = 0;
    const Status loaded =
        node_->load_shard(checkpoint(name), identity, spec, [&](const engine::LoadProgress&) {
          if (++reports <= 4) {
            EXPECT_TRUE(every_stream_goes_on());
          }
          return true;
        });
    EXPECT_TRUE(loaded.ok()) << loaded;
  }
  /// What the streams' rows give on an engine that does nothing else.
  std::vector<TokenId> alone(std::size_t stream) {
    const auto plain = make_engine();
    const auto shard = engine::testing::load(*plain, golden_folder("tiny-llama"), kUpper);
    engine::Segment segment;
    segment.cache = *plain->open_cache(shard, kUpper, kMost);
    segment.rows = kMost;
    for (Position p = 0; p < kMost; ++p) segment.hidden += row_of(stream, p);
    segment.want = engine::Want::kTokens;
    for (std::uint32_t row = 0; row < kMost; ++row) segment.sample_rows.push_back(row);
    const auto results = plain->step(shard, kUpper, std::span(&segment, 1));
    std::vector<TokenId> ids;
    for (const auto& token : results->at(0).tokens) ids.push_back(token.id);
    return ids;
  }

  static constexpr Position kMost = 300;
  const ModelIdentity model_ = random_id<ModelIdentity>(), other_ = random_id<ModelIdentity>();
  NumberedSteps* steps_ = nullptr;
  std::unique_ptr<Node> node_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool enough_ = false;
  std::vector<SessionId> sessions_;
  std::vector<std::vector<TokenId>> texts_;
  /// Of each stream's rows: steps begun when the node had it.
  std::map<std::pair<std::size_t, std::size_t>, std::uint64_t> given_;
  std::string reports_;
};

TEST_F(GrowAndShrink, StreamsBeyondTheDevicesMemoryTakeTurnsAndTheirTextsAreRight) {
  // A stream's cache has three blocks of three layers: keys and values of two heads of 32 floats.
  constexpr std::uint64_t kCache = std::uint64_t{3} * 3 * 128 * 2 * 2 * 32 * 4;
  pipeline::HopOptions hop;
  hop.cache_bytes = 3 * kCache;
  hop.spill_bytes = 10 * kCache;
  start(hop);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(every_stream_goes_on());
  const NodeFigures figures = node_->figures();
  EXPECT_GE(figures.hop.spills, 10u);
  EXPECT_EQ(figures.hop.cache_bytes, 3 * kCache);
  for (const SessionId& session : sessions_) node_->close({session, {1}});
  node_->wait_idle(kPatience);
  EXPECT_EQ(node_->figures().hop.cache_bytes + node_->figures().hop.spilled_bytes, 0u);
  node_->stop();
  EXPECT_EQ(reports_, "");
  EXPECT_EQ(node_->memory().cache_bytes + node_->memory().spilled_bytes, 0u);
  for (std::size_t i = 0; i < kStreams; ++i) {
    const std::vector<TokenId> expected = alone(i);
    for (std::size_t n = 0; n < texts_[i].size(); ++n) ASSERT_EQ(texts_[i][n], expected[n % kMost]);
  }
}

TEST_F(GrowAndShrink, NoStreamWaitsLongerThanTwoStepsForIt) {
  start();
  for (int round = 0; round < 3; ++round) {
    load("tiny-llama", model_, {kWhole, true, true});
    ASSERT_TRUE(node_->drop_shard(model_, kUpper).ok()) << "the wider one goes on";
    ASSERT_TRUE(every_stream_goes_on());
    load("tiny-qwen3", other_, {{0, 2}, true, false});
    load("tiny-llama", model_, {kUpper, false, true});
    ASSERT_TRUE(node_->drop_shard(model_, kWhole).ok()) << "the narrower one goes on";
    ASSERT_TRUE(node_->drop_shard(other_, {0, 2}).ok());
    ASSERT_TRUE(every_stream_goes_on());
    ASSERT_EQ(node_->shards().size(), 1u);
  }
  {
    const std::lock_guard lock(mutex_);
    enough_ = true;
  }
  node_->stop();
  EXPECT_EQ(reports_, "");
  std::uint64_t longest = 0;
  for (std::size_t i = 0; i < kStreams; ++i) {
    ASSERT_GE(texts_[i].size(), 30u);
    const std::vector<TokenId> expected = alone(i);
    for (std::size_t n = 0; n < texts_[i].size(); ++n) {
      ASSERT_EQ(texts_[i][n], expected[n % kMost]) << "stream " << i << ", row " << n;
      const std::uint64_t ran = steps_->step_of(i, static_cast<Position>(n % kMost), n / kMost);
      const std::uint64_t given = given_.at({i, n});
      longest = std::max(longest, ran > given ? ran - given : 0);
    }
  }
  EXPECT_LE(longest, 2u) << "steps from when a row came to the node to when it ran";
}

}  // namespace
}  // namespace mesh
