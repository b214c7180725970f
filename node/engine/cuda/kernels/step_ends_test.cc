#include "node/engine/cuda/kernels/step_ends.h"

#include <numeric>

#include "node/engine/cuda/kernels/kernels_fixture.h"

namespace mesh::engine::cuda {
namespace {

TEST_F(Kernels, AStepsRowsAreEmbeddingsGivenStatesOrZeros) {
  constexpr std::size_t kHidden = 2056, kVocab = 9;  // not a whole number of a block's pieces
  const Values embedding = rounded(normal(kVocab * kHidden)), narrow = rounded(normal(kHidden)),
               wide = normal(kHidden);
  DeviceArray<std::uint16_t> table(to_bf16(embedding)), on_device(to_bf16(narrow));
  HostArray<float> on_host(kHidden);
  std::ranges::copy(to_float(wide), on_host.data());
  HostArray<HostTables> host;
  host->block_count = 0;
  const std::vector<int> ids{8, kNarrowRow, kNoRow, kWideRow};
  std::ranges::copy(ids, host->ids);
  host->hidden[1] = reinterpret_cast<const std::byte*>(on_device.data());
  host->hidden[3] = reinterpret_cast<const std::byte*>(on_host.data());
  DeviceArray<HostTables> tables(1);
  DeviceArray<float> x(4 * kHidden);
  StepInput input{.host = host.data(), .device = tables.data(), .rows = 4, .hidden = kHidden};
  input.embedding = table.data(), input.x = x.data();
  done(begin_step(launch_, input));
  const std::vector<float> rows = x.host();
  for (std::size_t i = 0; i < kHidden; ++i) {
    ASSERT_EQ(rows[i], static_cast<float>(embedding[8 * kHidden + i]));
    ASSERT_EQ(rows[kHidden + i], static_cast<float>(narrow[i]));
    ASSERT_EQ(rows[2 * kHidden + i], 0);
    ASSERT_EQ(rows[3 * kHidden + i], static_cast<float>(wide[i]));
  }
}

TEST_F(Kernels, AStepsTablesComeToTheDeviceAsFarAsTheyCount) {
  HostArray<HostTables> host;
  host->block_count = 0;
  std::iota(host->device.place, host->device.place + kStageRows, 100);
  std::iota(host->device.first_block, host->device.first_block + kStageRows, 2000);
  std::iota(host->device.sampled, host->device.sampled + kStageRows, 4000);
  for (int i = 0; i < kStageRows; ++i)
    host->device.tiles[i] = {i, 2 * i, 3 * i, 4 * i, 5 * i}, host->ids[i] = kNoRow;
  for (std::size_t i = 0; i < kStageBlocks; ++i)
    host->device.blocks[i] = reinterpret_cast<std::byte*>(i * 256);
  DeviceArray<HostTables> tables(1);
  DeviceArray<float> x(2 * 64);
  StepInput input{.host = host.data(), .device = tables.data(), .rows = 2, .hidden = 64};
  input.tiles = 700, input.sampled = 3, host->block_count = 5000, input.x = x.data();
  done(begin_step(launch_, input));
  const DeviceTables found = tables.host()[0].device;
  EXPECT_EQ(found.place[1], 101);
  EXPECT_EQ(found.place[2], -1) << "was not to be brought";
  EXPECT_EQ(found.first_block[1], 2001);
  EXPECT_EQ(found.first_block[2], -1);
  EXPECT_EQ(found.sampled[2], 4002);
  EXPECT_EQ(found.sampled[3], -1);
  EXPECT_EQ(found.tiles[699].stored, 5 * 699);
  EXPECT_EQ(found.tiles[700].stored, -1);
  for (std::size_t i = 0; i < 5000; ++i) ASSERT_EQ(found.blocks[i], host->device.blocks[i]);
}

TEST_F(Kernels, RotationIsExactFarOut) {
  const std::vector<int> positions{0, 1, 131071, 1000000};
  const std::vector<float> frequencies{1.0f, 0.1f, 0.001234f, 1e-6f};
  HostArray<HostTables> host;
  host->block_count = 0;
  std::ranges::fill_n(host->ids, 4, kNoRow);
  std::ranges::copy(positions, host->rotary);
  std::ranges::copy(frequencies, host->frequencies);
  DeviceArray<HostTables> tables(1);
  DeviceArray<float> x(4 * 8), cos(16), sin(16);
  StepInput input{.host = host.data(), .device = tables.data(), .rows = 4, .hidden = 8};
  input.x = x.data(), input.cos = cos.data(), input.sin = sin.data();
  input.rotation_scale = 1.25f, input.pairs = 4;
  done(begin_step(launch_, input));
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::size_t i = 0; i < 4; ++i) {
      const float angle = static_cast<float>(positions[row]) * frequencies[i];
      ASSERT_FLOAT_EQ(cos.host()[row * 4 + i], static_cast<float>(std::cos(double{angle})) * 1.25f);
      ASSERT_FLOAT_EQ(sin.host()[row * 4 + i], static_cast<float>(std::sin(double{angle})) * 1.25f);
    }
  }
}

TEST_F(Kernels, AStepsResultsComeToTheHost) {
  std::vector<int> finite(kStageRows, 1);
  finite[300] = 0;
  const std::vector<Best> best{{7, -0.5f}, {-1, 0}};
  DeviceArray<int> flags(finite);
  DeviceArray<Best> tokens(best);
  HostArray<HostResults> host;
  done(end_step(launch_, flags.data(), 900, tokens.data(), 2, host.data()));
  for (std::size_t i = 0; i < 900; ++i) ASSERT_EQ(host->finite[i], finite[i]) << i;
  EXPECT_EQ(host->finite[900], -1) << "was not to be brought";
  EXPECT_EQ(host->best[0].id, 7);
  EXPECT_EQ(host->best[0].logprob, -0.5f);
  EXPECT_EQ(host->best[1].id, -1);
}

TEST_F(Kernels, NarrowedValuesAreOnTheDeviceAndOnTheHost) {
  constexpr std::size_t kCount = 3 * 2056;
  const Values values = normal(kCount);
  DeviceArray<float> from(to_float(values));
  DeviceArray<std::uint16_t> to(kCount), alone(kCount);
  HostArray<std::uint16_t> host(kCount);
  done(narrow_values(launch_, from.data(), to.data(), host.data(), kCount));
  done(narrow_values(launch_, from.data(), alone.data(), nullptr, kCount));
  const std::vector<std::uint16_t> expected = to_bf16(values);
  EXPECT_EQ(to.host(), expected);
  EXPECT_EQ(alone.host(), expected);
  for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(host[i], expected[i]) << i;
}

}  // namespace
}  // namespace mesh::engine::cuda
