#include "node/engine/exec/local_step.h"

#include <gtest/gtest.h>

#include <future>

#include "node/engine/exec/step.h"
#include "node/engine/testing/golden.h"
#include "node/engine/testing/held_stage.h"

// Steps under way on a device that a test holds; stages that are handed each other's rows.
namespace mesh::engine::testing {
namespace {

class StepsUnderWay : public ::testing::Test {
 protected:
  CacheId open(const LayerRange& range) {
    return *caches_.open(shard_->identity(), range,
                         {shard_->decoder->kv_heads, shard_->decoder->head_dim, Element::kBf16}, 64);
  }
  static Segment ids_to_hidden(CacheId cache, std::vector<TokenId> ids, Position start = 0) {
    Segment segment;
    segment.cache = cache, segment.start = start, segment.rows = static_cast<std::uint32_t>(ids.size());
    segment.ids = std::move(ids);
    return segment;
  }
  static Segment from(CacheId cache, PendingStep& step, std::size_t index, std::uint32_t rows) {
    Segment segment;
    segment.cache = cache, segment.rows = rows;
    segment.from = &step, segment.from_segment = index;
    return segment;
  }
  std::unique_ptr<LocalStep> begin(const LayerRange& range, std::vector<Segment> segments) {
    auto step = std::make_unique<LocalStep>(ops_, caches_, shard_, std::move(segments));
    runner_.begin(*step, range);
    return step;
  }
  Position cursor(CacheId cache) { return caches_.state(cache)->next; }
  /// Every place of a row is the same.
  static std::vector<std::uint16_t> rows_of(const std::string& hidden, std::size_t rows) {
    std::vector<std::uint16_t> values(rows);
    for (std::size_t i = 0; i < rows; ++i)
      std::memcpy(&values[i], hidden.data() + i * hidden.size() / rows, 2);
    return values;
  }

  std::unique_ptr<Engine> loader_ = cpu_engine(ComputeType::kBfloat16);
  std::shared_ptr<const LoadedShard> shard_ =
      std::static_pointer_cast<const LoadedShard>(load_all(*loader_, golden_folder("tiny-llama")));
  const LayerRange first_{0, 2}, second_{2, 4}, last_{4, 6};
  HeldStageOps ops_;
  MemoryBudget budget_{std::uint64_t{1} << 30};
  CacheTable caches_{ops_, budget_};
  StepRunner runner_{ops_, caches_, nullptr};
};

TEST_F(StepsUnderWay, ABeginReturnsWhileTheDeviceIsHeldAndCursorsMoveAtFinish) {
  ops_.held().hold(true);
  const CacheId one = open(first_), other = open(first_);
  const auto step = begin(first_, {ids_to_hidden(one, {5, 6})});
  const auto behind = begin(first_, {ids_to_hidden(other, {7})});
  EXPECT_FALSE(step->ended());
  EXPECT_EQ(cursor(one), 0u);
  ops_.held().hold(false);
  const auto results = step->finish();
  ASSERT_TRUE(results.ok() && (*results)[0].status.ok());
  EXPECT_EQ(rows_of((*results)[0].hidden, 2), (std::vector<std::uint16_t>{11, 13}));
  EXPECT_EQ(cursor(one), 2u);
  EXPECT_EQ(cursor(other), 0u);
  EXPECT_EQ(rows_of((*behind->finish())[0].hidden, 1), (std::vector<std::uint16_t>{15}));
  EXPECT_EQ(cursor(other), 1u);
}

TEST_F(StepsUnderWay, ACacheInOneIsNeitherTrimmedNorSharedNorInAnother) {
  const CacheId cache = open(first_);
  const auto step = begin(first_, {ids_to_hidden(cache, {5})});
  EXPECT_EQ(caches_.trim(cache, 0).code(), StatusCode::kUnavailable);
  EXPECT_EQ(caches_.share(cache, 0).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(caches_.spill(cache).status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE((*begin(first_, {ids_to_hidden(cache, {6}, 1)})->finish())[0].status.ok());
  ASSERT_TRUE((*step->finish())[0].status.ok());
  EXPECT_TRUE(caches_.trim(cache, 0).ok());
}

TEST_F(StepsUnderWay, AClosedCacheGivesItsMemoryBackWhenTheStepEnds) {
  const CacheId cache = open(first_);
  const std::uint64_t free = budget_.totals().free();
  auto step = begin(first_, {ids_to_hidden(cache, {5})});
  caches_.close(cache);
  EXPECT_EQ(budget_.totals().free(), free);
  ASSERT_TRUE((*step->finish())[0].status.ok());
  EXPECT_GT(budget_.totals().free(), free);
}

TEST_F(StepsUnderWay, ADeviceErrorFailsThatStepAloneAndLeavesItsCursor) {
  const CacheId one = open(first_), other = open(first_);
  ops_.held().fail(1);
  const auto step = begin(first_, {ids_to_hidden(one, {5})});
  const auto behind = begin(first_, {ids_to_hidden(other, {7})});
  const auto failed = step->finish();
  EXPECT_EQ(message_of((*failed)[0].status), "the device broke");
  EXPECT_TRUE((*failed)[0].hidden.empty());
  EXPECT_EQ(cursor(one), 0u);
  EXPECT_TRUE((*behind->finish())[0].status.ok());
  EXPECT_TRUE((*begin(first_, {ids_to_hidden(one, {5})})->finish())[0].status.ok())
      << "it may be tried again";
}

TEST_F(StepsUnderWay, OneThatIsDroppedWaitsAndLetsItsCachesGo) {
  const CacheId cache = open(first_);
  ops_.held().hold(true);
  auto step = begin(first_, {ids_to_hidden(cache, {5})});
  auto dropped = std::async(std::launch::async, [&] { step.reset(); });
  ops_.held().hold(false);
  dropped.get();
  EXPECT_TRUE(caches_.trim(cache, 0).ok());
}

TEST_F(StepsUnderWay, WhatIsRememberedOfAShardForItsNextStepDoesNotKeepIt) {
  const CacheId cache = open(first_);
  ASSERT_TRUE((*begin(first_, {ids_to_hidden(cache, {5})})->finish())[0].status.ok());
  ASSERT_TRUE((*begin(first_, {ids_to_hidden(cache, {6}, 1)})->finish())[0].status.ok());
  const std::weak_ptr<const DecoderSpec> weights = shard_->decoder;
  shard_.reset();
  EXPECT_TRUE(weights.expired());
}

TEST_F(StepsUnderWay, AStageIsHandedTheRowsOfTheOneBeforeWithoutTheHost) {
  ops_.held().hold(true);
  const auto first = begin(first_, {ids_to_hidden(open(first_), {2}), ids_to_hidden(open(first_), {5, 6})});
  const CacheId cache = open(second_);
  const auto second = begin(second_, {from(cache, *first, 1, 2)});
  EXPECT_EQ(ops_.held().handed_over(), 1);
  ops_.held().hold(false);
  const auto results = second->finish();
  ASSERT_TRUE((*results)[0].status.ok()) << (*results)[0].status;
  EXPECT_EQ(rows_of((*results)[0].hidden, 2), (std::vector<std::uint16_t>{23, 27})) << "2 · (2 · id + 1) + 1";
  EXPECT_EQ(rows_of((*first->finish())[1].hidden, 2), (std::vector<std::uint16_t>{11, 13}));
}

TEST_F(StepsUnderWay, RowsThatTheDeviceNoLongerHasComeFromTheHost) {
  const auto first = begin(first_, {ids_to_hidden(open(first_), {5})});
  for (int i = 0; i < 2; ++i) begin(first_, {ids_to_hidden(open(first_), {1})})->finish().IgnoreError();
  const auto second = begin(second_, {from(open(second_), *first, 0, 1)});
  EXPECT_EQ(ops_.held().handed_over(), 0);
  EXPECT_EQ(rows_of((*second->finish())[0].hidden, 1), (std::vector<std::uint16_t>{23}));
}

TEST_F(StepsUnderWay, WhatASegmentIsHandedMustBeThereAndFit) {
  const CacheId closed = open(first_);
  caches_.close(closed);
  Segment narrow = ids_to_hidden(open(first_), {5}), wide = ids_to_hidden(open(first_), {5});
  wide.out_type = HiddenType::kFloat32;
  const auto first = begin(first_, {narrow, wide, ids_to_hidden(closed, {5})});
  const auto said = [&](Segment segment) {
    return std::string(message_of((*begin(second_, {std::move(segment)})->finish())[0].status));
  };
  EXPECT_NE(said(from(open(second_), *first, 0, 2)).find("does not give 2 rows"), std::string::npos);
  EXPECT_NE(said(from(open(second_), *first, 1, 1)).find("bfloat16 hidden states"), std::string::npos);
  EXPECT_NE(said(from(open(second_), *first, 2, 1)).find("it was closed"), std::string::npos);
  EXPECT_NE(said(from(open(second_), *first, 3, 1)).find("no segment 3"), std::string::npos);
  Segment both = from(open(second_), *first, 0, 1);
  both.ids = {1};
  EXPECT_NE(said(both).find("either ids or hidden states"), std::string::npos);
}

TEST_F(StepsUnderWay, AStepIsBegunWithTheRowsOfOneThatAnotherThreadWaitsFor) {
  ops_.held().hold(true);
  const auto first = begin(first_, {ids_to_hidden(open(first_), {5})});
  auto finished = std::async(std::launch::async, [&] { return first->finish(); });
  const auto second = begin(second_, {from(open(second_), *first, 0, 1)});
  ops_.held().hold(false);
  EXPECT_EQ(rows_of((*second->finish())[0].hidden, 1), (std::vector<std::uint16_t>{23}));
  EXPECT_EQ(rows_of((*finished.get())[0].hidden, 1), (std::vector<std::uint16_t>{11}));
}

TEST_F(StepsUnderWay, RowsThatAStepTakesLateAreThereThoughTheirStepWasFinishedMeanwhile) {
  const auto first = begin(first_, {ids_to_hidden(open(first_), {5})});
  std::vector<Segment> segments;  // three forwards: the last one finds the device's rows taken
  for (int i = 0; i < 32; ++i) segments.push_back(ids_to_hidden(open(first_), std::vector<TokenId>(64, 1)));
  segments.push_back(from(open(first_), *first, 0, 1));
  StatusOr<std::vector<SegmentResult>> given = std::vector<SegmentResult>();
  ops_.held().before_begin(
      [&] { given = std::async(std::launch::async, [&] { return first->finish(); }).get(); });
  const auto second = begin(first_, std::move(segments));
  const auto results = second->finish();
  ASSERT_TRUE((*results)[32].status.ok()) << (*results)[32].status;
  EXPECT_EQ(ops_.held().handed_over(), 0);
  EXPECT_EQ(rows_of((*results)[32].hidden, 1), (std::vector<std::uint16_t>{23}));
  EXPECT_EQ(rows_of((*given)[0].hidden, 1), (std::vector<std::uint16_t>{11}));
}

TEST_F(StepsUnderWay, OneThatWasFinishedGivesNoRows) {
  const auto first = begin(first_, {ids_to_hidden(open(first_), {5})});
  ASSERT_TRUE(first->finish().ok());
  const auto second = begin(second_, {from(open(second_), *first, 0, 1)});
  EXPECT_NE(message_of((*second->finish())[0].status).find("was finished already"), std::string_view::npos);
}

// Of use under the thread sanitizer.
TEST_F(StepsUnderWay, OneIsFinishedWhileAnotherBeginsWithItsRows) {
  const CacheId one = open(first_), other = open(second_);
  for (int i = 0; i < 200; ++i) {
    const auto first = begin(first_, {ids_to_hidden(one, {5})});
    auto finished = std::async(std::launch::async, [&] { return first->finish(); });
    const auto second = begin(second_, {from(other, *first, 0, 1)});
    EXPECT_EQ(rows_of((*finished.get())[0].hidden, 1), (std::vector<std::uint16_t>{11}));
    const auto results = second->finish();
    if (const Status& refused = (*results)[0].status; !refused.ok()) {
      EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused;
    } else {
      EXPECT_EQ(rows_of((*results)[0].hidden, 1), (std::vector<std::uint16_t>{23}));
    }
  }
}

/// On each device: two steps at once and rows that are handed over give the bits of one step after another.
class BegunSteps : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    const char* library = std::getenv("MESHNET_CUDA_LIBRARY");
    if (GetParam() == Device::kCuda && library == nullptr) GTEST_SKIP() << "MESHNET_CUDA_LIBRARY is not set";
    auto engine = Engine::create({.device = GetParam(),
                                  .compute = ComputeType::kBfloat16,
                                  .threads = 2,
                                  .memory_bytes = std::uint64_t{1} << 30,
                                  .cuda_library = library == nullptr ? "" : library});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    shard_ = load_all(*engine_, golden_folder("tiny-llama"));
  }
  Segment segment(const LayerRange& range, std::vector<TokenId> ids) {
    Segment segment = token_segment(*engine_->open_cache(shard_, range, 300), std::move(ids));
    if (range != all_) segment.want = Want::kHidden, segment.want_logits = false;
    return segment;
  }
  static std::vector<TokenId> prompt(int length) {
    std::vector<TokenId> ids;
    for (int i = 0; i < length; ++i) ids.push_back(7 + i * 31 % 1500);
    return ids;
  }

  const LayerRange all_{0, 6}, first_{0, 3}, last_{3, 6};
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const Shard> shard_;
};

TEST_P(BegunSteps, GiveTheBitsOfOneAfterTheOther) {
  std::vector<std::vector<float>> alone;
  for (const int length : {1, 9, 200}) {
    const Segment one = segment(all_, prompt(length));
    alone.push_back((*engine_->step(shard_, all_, std::span(&one, 1)))[0].logits);
  }
  for (int turn = 0; turn < 3; ++turn) {  // launches, then graphs
    std::vector<std::unique_ptr<PendingStep>> steps;
    for (const int length : {1, 9, 200})
      steps.push_back(*engine_->begin(shard_, all_, {segment(all_, prompt(length))}));
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto results = steps[i]->finish();
      ASSERT_TRUE(results.ok() && (*results)[0].status.ok()) << (*results)[0].status;
      EXPECT_EQ((*results)[0].logits, alone[i]) << "turn " << turn;
    }
  }
}

TEST_P(BegunSteps, AStageIsHandedTheBitsThatTheHostWouldBring) {
  for (const int length : {1, 40}) {
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<std::vector<float>> logits;
      for (const bool over_host : {true, false}) {
        const auto before =
            engine_->begin(shard_, first_, {segment(first_, prompt(3)), segment(first_, prompt(length))});
        Segment after = token_segment(*engine_->open_cache(shard_, last_, 300), {});
        after.rows = static_cast<std::uint32_t>(length);
        std::vector<SegmentResult> results;
        if (over_host) {
          results = *(*before)->finish();
          after.hidden = results[1].hidden;
        } else {
          after.from = before->get(), after.from_segment = 1;
        }
        results = *(*engine_->begin(shard_, last_, {after}))->finish();
        ASSERT_TRUE(results[0].status.ok()) << results[0].status;
        logits.push_back(results[0].logits);
      }
      EXPECT_EQ(logits[0], logits[1]) << length << " rows, turn " << turn;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, BegunSteps, ::testing::Values(Device::kCpu, Device::kCuda),
                         [](const auto& one) { return one.param == Device::kCuda ? "Gpu" : "Cpu"; });

}  // namespace
}  // namespace mesh::engine::testing
