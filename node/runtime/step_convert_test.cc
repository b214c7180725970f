#include "node/runtime/step_convert.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mesh {
namespace {

pipeline::StepSegment segment_of(Position start, std::uint32_t rows) {
  pipeline::StepSegment segment;
  segment.start = start;
  segment.rows = rows;
  segment.hidden = std::make_shared<const std::string>(rows * 4, 'h');
  return segment;
}

TEST(StepConvert, TheTailWantsTokensOnlyWhereTheyAreSampled) {
  pipeline::StepWork work;
  EXPECT_EQ(to_engine(segment_of(0, 2), work, {1})->want, engine::Want::kHidden);
  work.ends_model = true;
  EXPECT_EQ(to_engine(segment_of(0, 2), work, {1})->want, engine::Want::kNothing);
  pipeline::StepSegment sampled = segment_of(0, 2);
  sampled.sample = true;
  sampled.sampling.seed = 7;
  const auto converted = to_engine(sampled, work, {1});
  EXPECT_EQ(converted->want, engine::Want::kTokens);
  EXPECT_EQ(converted->sampling.seed, 7u);
}

TEST(StepConvert, RowsOfASpanSeeEachOtherAndTheRestIsCausal) {
  pipeline::StepSegment segment = segment_of(1, 3);  // rows 1, 2, 3 over keys 0 … 3
  segment.spans = {{2, 4}};
  const auto converted = to_engine(segment, {}, {1});
  ASSERT_TRUE(converted.ok()) << converted.status();
  const std::vector<float>& mask = converted->mask->additive;
  ASSERT_EQ(mask.size(), 12u);
  const auto visible = [&](int row, int key) { return mask[static_cast<std::size_t>(row * 4 + key)] == 0; };
  EXPECT_TRUE(visible(0, 1));
  EXPECT_FALSE(visible(0, 2));
  EXPECT_TRUE(visible(1, 3));  // row at position 2 sees position 3
  EXPECT_TRUE(visible(2, 3));
  EXPECT_TRUE(std::isinf(mask[3]));
}

TEST(StepConvert, ASpanBeyondTheSegmentIsRefused) {
  pipeline::StepSegment segment = segment_of(0, 2);
  segment.spans = {{1, 5}};
  EXPECT_EQ(to_engine(segment, {}, {1}).status().code(), StatusCode::kInvalidArgument);
}

TEST(StepConvert, SideTensorsAndThreeAxesAreRefusedByName) {
  pipeline::StepSegment segment = segment_of(0, 1);
  segment.sides = {{"per_layer", 4, nullptr}};
  EXPECT_NE(to_engine(segment, {}, {1}).status().ToString().find("per_layer"), std::string::npos);
  segment.sides.clear();
  segment.positions = {3, {1, 2, 3}};
  EXPECT_EQ(to_engine(segment, {}, {1}).status().code(), StatusCode::kUnimplemented);
}

TEST(StepConvert, AFailedSegmentKeepsItsStatusAlone) {
  engine::SegmentResult result;
  result.status = error(StatusCode::kInternal, "not finite");
  result.hidden = "garbage";
  const pipeline::SegmentOutput output = from_engine(result);
  EXPECT_FALSE(output.status.ok());
  EXPECT_EQ(output.hidden, nullptr);
}

}  // namespace
}  // namespace mesh
