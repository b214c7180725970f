#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "node/engine/cache/cache_table.h"
#include "node/engine/testing/failing_memory.h"

namespace mesh::engine {

using Handle = std::shared_ptr<const SharedBlock>;
using Stamps = std::vector<std::uint32_t>;

/// Caches whose tokens are stamps: the four bytes at the token's place in each layer's block.
class StampedCaches : public ::testing::Test {
 protected:
  static constexpr LayerRange kRange{2, 4};
  static constexpr ops::KvLayout kLayout{1, 8, Element::kF32};
  static constexpr std::uint64_t kBudget = std::uint64_t{64} << 20;
  static constexpr std::uint64_t kHost = std::uint64_t{1} << 20;
  /// Of 128 tokens in two layers: keys of 8 floats, values padded to 32.
  static constexpr std::uint64_t kBlock = 2 * 128 * (8 + 32) * sizeof(float);

  CacheId open(Position positions = 1000) { return *caches.open(model, kRange, kLayout, positions); }
  /// One step that writes `stamps` from `start` on.
  void write(CacheId id, Position start, const Stamps& stamps) {
    const auto rows = static_cast<std::uint32_t>(stamps.size());
    const auto cache = *caches.lend(id, model, kRange, start, rows);
    const Status writable = cache->make_writable(*ops, start, start + rows, &memory);
    if (!writable.ok()) caches.give_back(*cache, start);
    ASSERT_TRUE(writable.ok());
    for (std::uint32_t layer = kRange.begin; layer < kRange.end; ++layer) {
      const auto blocks = cache->blocks_of(layer);
      for (Position i = 0; i < rows; ++i) {
        const Position at = start + i;
        std::memcpy(blocks[at / 128] + at % 128 * 4, &stamps[i], 4);
      }
    }
    caches.give_back(*cache, start + rows);
  }
  /// What every layer has; an empty list when layers differ.
  Stamps read(CacheId id) {
    const Position next = caches.state(id)->next;
    const auto cache = *caches.lend(id, model, kRange, next, 0);
    Stamps first;
    for (std::uint32_t layer = kRange.begin; layer < kRange.end; ++layer) {
      const auto blocks = cache->blocks_of(layer);
      Stamps stamps(next);
      for (Position at = 0; at < next; ++at) std::memcpy(&stamps[at], blocks[at / 128] + at % 128 * 4, 4);
      if (layer == kRange.begin) first = stamps;
      if (stamps != first) first.clear();
    }
    caches.give_back(*cache, next);
    return first;
  }
  std::set<const std::byte*> places(CacheId id) {
    const auto cache = *caches.lend(id, model, kRange, caches.state(id)->next, 0);
    const auto blocks = cache->blocks_of(kRange.begin);
    caches.give_back(*cache, caches.state(id)->next);
    return {blocks.begin(), blocks.end()};
  }
  static Stamps counting(std::uint32_t from, std::size_t count) {
    Stamps stamps(count);
    for (auto& stamp : stamps) stamp = from++;
    return stamps;
  }

  ModelIdentity model;
  std::unique_ptr<DeviceOps> ops = *make_cpu_ops(1);
  MemoryBudget budget{kBudget};
  testing::FailingMemory memory;
  CacheTable caches{*ops, budget, kHost, &memory};
};

}  // namespace mesh::engine
