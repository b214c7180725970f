#include <gmock/gmock.h>

#include <future>
#include <map>
#include <random>

#include "node/engine/cache/stamped_caches_for_test.h"
#include "node/engine/testing/held_stage.h"

namespace mesh::engine {
namespace {

using ::testing::HasSubstr;

using Spilling = StampedCaches;

TEST_F(Spilling, WhatLeftTheDeviceComesBackAsItWas) {
  const std::uint64_t empty = budget.totals().free();
  const CacheId id = open();
  write(id, 0, counting(1, 300));
  EXPECT_EQ(*caches.spill(id), 3 * kBlock);
  EXPECT_EQ(budget.totals().free(), empty);
  EXPECT_EQ(caches.blocks(), 0u);
  EXPECT_EQ(caches.host().used(), 3 * kBlock) << "blocks with tokens alone";
  EXPECT_TRUE(caches.state(id)->on_host);
  EXPECT_EQ(caches.state(id)->next, 300u);
  EXPECT_EQ(*caches.spill(id), 0u) << "it is there already";

  EXPECT_EQ(*caches.restore(id), 3 * kBlock);
  EXPECT_EQ(caches.host().used(), 0u);
  EXPECT_EQ(caches.blocks(), 16u) << "all that it reserved at opening";
  EXPECT_EQ(read(id), counting(1, 300));
  write(id, 300, counting(301, 500));
  EXPECT_EQ(read(id), counting(1, 800));
  EXPECT_EQ(*caches.restore(id), 0u);
}

TEST_F(Spilling, InHostMemoryACacheIsTrimmedAndClosedOnly) {
  const CacheId id = open();
  write(id, 0, counting(1, 300));
  ASSERT_TRUE(caches.spill(id).ok());
  EXPECT_EQ(caches.lend(id, model, kRange, 300, 1).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(caches.share(id, 0).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(caches.trim(id, 301).code(), StatusCode::kOutOfRange);
  ASSERT_TRUE(caches.trim(id, 100).ok());
  EXPECT_EQ(caches.host().used(), kBlock);
  ASSERT_TRUE(caches.restore(id).ok());
  EXPECT_EQ(read(id), counting(1, 100));

  ASSERT_TRUE(caches.spill(id).ok());
  ASSERT_TRUE(caches.trim(id, 0).ok());
  EXPECT_EQ(caches.attach(id, {}, 0).code(), StatusCode::kFailedPrecondition);
  caches.close(id);
  EXPECT_EQ(caches.host().used(), 0u);
  EXPECT_EQ(caches.spill(id).status().code(), StatusCode::kNotFound);
}

TEST_F(Spilling, SharedBlocksStayWithTheOthers) {
  const CacheId first = open();
  write(first, 0, counting(1, 256));
  std::vector<Handle> blocks{*caches.share(first, 0), *caches.share(first, 1)};
  const CacheId second = open();
  ASSERT_TRUE(caches.attach(second, blocks, 256).ok());
  ASSERT_TRUE(caches.spill(first).ok());
  blocks.clear();
  write(second, 100, {9999});
  ASSERT_TRUE(caches.restore(first).ok());
  EXPECT_EQ(read(first), counting(1, 256));
  caches.close(second);
  EXPECT_EQ(read(first), counting(1, 256));
}

TEST_F(Spilling, WithoutHostMemoryACacheStaysWhereItIs) {
  std::vector<CacheId> ids;
  const std::uint64_t blocks = kHost / kBlock;
  for (std::uint64_t done = 0; done < blocks; done += 7) {
    ids.push_back(open());
    write(ids.back(), 0, counting(1, 7 * 128));
  }
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) ASSERT_TRUE(caches.spill(ids[i]).ok());
  const auto full = caches.spill(ids.back());
  ASSERT_EQ(full.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(message_of(full.status())), HasSubstr("--spill-memory"));
  EXPECT_EQ(caches.host().used(), (ids.size() - 1) * 7 * kBlock) << "what it had taken went back";
  EXPECT_EQ(read(ids.back()), counting(1, 7 * 128));
}

TEST_F(Spilling, WithoutRoomOnTheDeviceACacheStaysInHostMemory) {
  const CacheId id = open();
  write(id, 0, counting(1, 300));
  ASSERT_TRUE(caches.spill(id).ok());
  auto rest = budget.reserve(MemoryUseKind::kWeights, budget.totals().free(), "a shard");
  EXPECT_EQ(caches.restore(id).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(caches.state(id)->on_host);
  *rest = {};
  ASSERT_TRUE(caches.restore(id).ok());
  EXPECT_EQ(read(id), counting(1, 300));
}

TEST_F(Spilling, MemoryThatFailsInTheMiddleChangesNothing) {
  const CacheId id = open();
  write(id, 0, counting(1, 300));
  const std::uint64_t free = budget.totals().free();
  memory.fail_after(1);
  EXPECT_EQ(caches.spill(id).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(caches.host().used(), 0u);
  EXPECT_EQ(budget.totals().free(), free);
  ASSERT_TRUE(caches.spill(id).ok());
  memory.fail_after(2);
  EXPECT_EQ(caches.restore(id).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(budget.totals().free(), kBudget);
  EXPECT_EQ(caches.host().used(), 3 * kBlock);
  ASSERT_TRUE(caches.restore(id).ok());
  EXPECT_EQ(read(id), counting(1, 300));
}

TEST_F(Spilling, FreedHostMemoryServesAgainAndMakesRoomForOtherSizes) {
  const CacheId id = open();
  write(id, 0, counting(1, 128));
  ASSERT_TRUE(caches.spill(id).ok());
  ASSERT_TRUE(caches.restore(id).ok());
  memory.allow_at_most(0);
  ASSERT_TRUE(caches.spill(id).ok()) << "its block waited";
  memory.allow_at_most(~std::uint64_t{0});
  HostBlocks host(*ops, 100, nullptr);
  {
    const auto ninety = *host.take(90);
  }
  EXPECT_TRUE(host.take(60).ok());
  EXPECT_FALSE(host.take(101).ok());
}

/// Sessions that write, keep blocks, begin with blocks, leave the device, come back and end in random order,
/// while memory fails at times: each reads what it wrote.
TEST_F(Spilling, UnderRandomUseAndFailuresEverybodyReadsItsOwnTokens) {
  struct Kept {
    std::vector<Handle> blocks;
    Stamps stamps;
  };
  std::uint64_t failures = 0, moves = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    std::map<CacheId, Stamps> sessions;
    std::vector<Kept> kept;
    std::uint32_t stamp = 0;
    for (int step = 0; step < 150; ++step) {
      memory.fail_after(below(4) == 0 ? static_cast<std::int64_t>(below(4)) : -1);
      if (sessions.empty() || below(8) == 0) {
        const CacheId id = open();
        Stamps stamps;
        if (!kept.empty() && below(4) != 0) {
          const Kept& from = kept[below(kept.size())];
          ASSERT_TRUE(caches.attach(id, from.blocks, static_cast<Position>(from.blocks.size() * 128)).ok());
          stamps = from.stamps;
        }
        sessions.emplace(id, stamps);
        continue;
      }
      auto at = sessions.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(below(sessions.size())));
      auto& [id, stamps] = *at;
      const auto what = below(10);
      if (what < 3) {
        failures += !caches.spill(id).ok();
        continue;
      }
      if (what == 3) {
        caches.close(id);
        sessions.erase(at);
        continue;
      }
      const auto back = caches.restore(id);
      failures += !back.ok();
      if (!back.ok()) continue;
      moves += *back > 0;
      memory.fail_after(-1);
      if (what < 7 && stamps.size() < 700) {
        const std::size_t start = below(3) == 0 ? below(stamps.size() + 1) : stamps.size();
        const Stamps more = counting(stamp, 1 + below(200));
        stamp += 200;
        stamps.resize(start);
        stamps.insert(stamps.end(), more.begin(), more.end());
        write(id, static_cast<Position>(start), more);
      } else if (what < 8 && stamps.size() >= 128) {
        Kept& keep = kept.emplace_back();
        const std::size_t count = 1 + below(stamps.size() / 128);
        for (std::uint32_t i = 0; i < count; ++i) keep.blocks.push_back(*caches.share(id, i));
        keep.stamps.assign(stamps.begin(), stamps.begin() + static_cast<std::ptrdiff_t>(count * 128));
      } else if (what < 9 && !kept.empty()) {
        kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(below(kept.size())));
      } else {
        ASSERT_EQ(read(id), stamps) << "seed " << seed;
      }
    }
    memory.fail_after(-1);
    for (const auto& [id, stamps] : sessions) {
      ASSERT_TRUE(caches.restore(id).ok());
      ASSERT_EQ(read(id), stamps) << "seed " << seed;
      caches.close(id);
    }
    kept.clear();
    ASSERT_EQ(budget.totals().free(), kBudget) << "seed " << seed;
    ASSERT_EQ(caches.host().used(), 0u) << "seed " << seed;
  }
  EXPECT_GT(failures, 100u);
  EXPECT_GT(moves, 500u);
}

/// Host memory that says when it is freed.
class WatchedHost final : public testing::HeldStageOps {
 public:
  StatusOr<DeviceMemory> allocate_host(std::uint64_t bytes) override {
    MESH_ASSIGN_OR_RETURN(DeviceMemory memory, allocate(bytes));
    std::byte* const at = memory.get();
    return DeviceMemory(at, [this, memory = std::move(memory)](std::byte*) { freed(); });
  }
  std::function<void()> freed = [] {};
};

TEST(HostBlocks, NobodyWaitsWhileMemoryOfAnotherSizeIsFreed) {
  WatchedHost ops;
  HostBlocks host(ops, 128, nullptr);
  ASSERT_TRUE(host.take(64).ok());  // and given back
  std::future<std::uint64_t> looked;
  bool waited = false;
  ops.freed = [&] {
    looked = std::async(std::launch::async, [&] { return host.used(); });
    waited = looked.wait_for(std::chrono::seconds(10)) != std::future_status::ready;
  };
  const auto larger = host.take(100);
  ops.freed = [] {};
  ASSERT_TRUE(larger.ok());
  ASSERT_TRUE(looked.valid()) << "the spare block made room";
  EXPECT_FALSE(waited);
}

}  // namespace
}  // namespace mesh::engine
