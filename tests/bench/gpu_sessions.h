#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "node/engine/engine.h"

namespace mesh::bench {
using namespace engine;

/// The value, or the end of the program with the error's text.
template <class T>
T must(StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  fmt::print(stderr, "{}\n", message_of(value.status()));
  std::exit(1);
}

/// Seconds of a steady clock.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// Sessions that go forward together.
class Sessions {
 public:
  Sessions(Engine& engine, std::shared_ptr<const Shard> shard, std::size_t count, Position limit)
      : engine_(engine), shard_(std::move(shard)), range_(0, shard_->profile().layer_count()) {
    for (std::size_t i = 0; i < count; ++i) {
      caches_.push_back(must(engine_.open_cache(shard_, range_, limit)));
      feeds_.push_back(token(i));
    }
  }
  ~Sessions() {
    for (const CacheId cache : caches_) engine_.close_cache(cache);
  }
  Sessions(const Sessions&) = delete;

  /// Fills every cache up to `tokens`, one session after another.
  void prefill(Position tokens, std::uint32_t chunk) {
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      for (Position at = 0; at < tokens; at += chunk) {
        Segment segment;
        segment.cache = caches_[i], segment.start = at, segment.rows = std::min(chunk, tokens - at);
        for (std::uint32_t k = 0; k < segment.rows; ++k) segment.ids.push_back(token(i * 7919 + at + k));
        segment.want = at + segment.rows == tokens ? Want::kTokens : Want::kNothing;
        run({std::move(segment)});
      }
    }
    position_ = tokens;
  }
  void decode() {
    begin_decode();
    end_decode();
  }
  /// Another group's step may be begun before this one ends.
  void begin_decode() {
    std::vector<Segment> segments;
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      Segment& segment = segments.emplace_back();
      segment.cache = caches_[i], segment.start = position_, segment.rows = 1;
      segment.ids = {feeds_[i]}, segment.want = Want::kTokens;
    }
    begun_ = must(engine_.begin(shard_, range_, std::move(segments)));
  }
  void end_decode() {
    const auto results = checked(must(begun_->finish()));
    for (std::size_t i = 0; i < caches_.size(); ++i) feeds_[i] = results[i].tokens[0].id;
    ++position_;
  }
  void back_to(Position position) { position_ = position; }
  std::span<const CacheId> caches() const { return caches_; }

 private:
  TokenId token(std::size_t seed) const {
    return static_cast<TokenId>((seed * 2654435761u + 12345u) % shard_->profile().vocab);
  }
  std::vector<SegmentResult> run(const std::vector<Segment>& segments) {
    return checked(must(engine_.step(shard_, range_, segments)));
  }
  static std::vector<SegmentResult> checked(std::vector<SegmentResult> results) {
    for (const SegmentResult& result : results) {
      if (!result.status.ok()) must(StatusOr<int>(result.status));
    }
    return results;
  }

  Engine& engine_;
  std::shared_ptr<const Shard> shard_;
  LayerRange range_;
  std::vector<CacheId> caches_;
  std::vector<TokenId> feeds_;
  std::unique_ptr<PendingStep> begun_;
  Position position_ = 0;
};

}  // namespace mesh::bench
