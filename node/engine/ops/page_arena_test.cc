#include "node/engine/ops/page_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace mesh::ops {
namespace {

std::size_t resident_pages(const std::byte* data, std::size_t bytes) {
  std::vector<unsigned char> pages(bytes / 4096);
  EXPECT_EQ(mincore(const_cast<std::byte*>(data), bytes, pages.data()), 0);
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](auto page) { return page & 1; }));
}

TEST(PageArena, PiecesAreZeroedApartAndLieBehindEachOther) {
  PageArena arena;
  std::vector<AlignedBytes> pieces;
  for (const std::size_t bytes : {1, 4096, 5000, 3 << 20}) {
    pieces.push_back(*arena.allocate(bytes));
    const AlignedBytes& piece = pieces.back();
    ASSERT_EQ(piece.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece.data()) % 4096, 0u);
    EXPECT_TRUE(
        std::all_of(piece.data(), piece.data() + bytes, [](std::byte b) { return b == std::byte{}; }));
    std::memset(piece.data(), static_cast<int>(pieces.size()), bytes);
  }
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces[0].data()) % (2 << 20), 0u);
  EXPECT_EQ(pieces[1].data(), pieces[0].data() + 4096);
  EXPECT_EQ(pieces[3].data(), pieces[2].data() + 8192);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].data()[0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(pieces[i].data()[pieces[i].size() - 1], static_cast<std::byte>(i + 1));
  }
}

TEST(PageArena, APieceThatGoesGivesItsPagesBackWhileOthersStay) {
  PageArena arena;
  constexpr std::size_t kBytes = 4 << 20;
  auto first = *arena.allocate(kBytes);
  const auto second = *arena.allocate(kBytes);
  std::memset(first.data(), 1, kBytes);
  std::memset(second.data(), 2, kBytes);
  const std::byte* const where = first.data();
  ASSERT_EQ(resident_pages(where, kBytes), kBytes / 4096);
  first = AlignedBytes();
  EXPECT_EQ(resident_pages(where, kBytes), 0u);
  EXPECT_EQ(resident_pages(second.data(), kBytes), kBytes / 4096);
  EXPECT_EQ(second.data()[kBytes - 1], std::byte{2});
}

TEST(PageArena, PiecesOutliveIt) {
  AlignedBytes piece;
  {
    PageArena arena;
    piece = *arena.allocate(100);
    const auto large = *arena.allocate(std::size_t{200} << 20);  // a mapping of its own
    large.data()[large.size() - 1] = std::byte{3};
  }
  std::memset(piece.data(), 1, piece.size());
  EXPECT_EQ(piece.data()[99], std::byte{1});
}

TEST(PageArena, RefusesWhatNoMachineHas) {
  PageArena arena;
  EXPECT_EQ(arena.allocate(SIZE_MAX).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(arena.allocate(SIZE_MAX / 4).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(arena.allocate(0)->size(), 0u);
}

}  // namespace
}  // namespace mesh::ops
