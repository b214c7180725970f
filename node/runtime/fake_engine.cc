#include "node/runtime/fake_engine.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "common/base/kv_blocks.h"

namespace mesh {
namespace {

/// FNV-1a, then a mix, so that low bits depend on all.
std::uint64_t hash_of(std::uint64_t before, LayerRange range, std::string_view row) {
  std::uint64_t hash = 0xcbf29ce484222325ull ^ before;
  const auto add = [&](std::uint64_t byte) { hash = (hash ^ byte) * 0x100000001b3ull; };
  add(range.begin);
  add(range.end);
  for (const char c : row) add(static_cast<unsigned char>(c));
  hash ^= hash >> 29;
  return hash * 0xbf58476d1ce4e5b9ull ^ hash >> 32;
}

std::string row_of_id(TokenId id) {
  return std::string(reinterpret_cast<const char*>(&id), sizeof id);
}

/// kHidden bf16 values, all finite.
std::string row_of_hash(std::uint64_t hash) {
  std::string row;
  for (std::uint32_t i = 0; i < FakeEngine::kHidden; ++i) {
    hash = hash * 6364136223846793005ull + 1442695040888963407ull;
    const auto value = static_cast<std::uint16_t>(hash >> 48 & 0x3fff);
    row.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return row;
}

TokenId token_of(std::uint64_t hash) {
  return static_cast<TokenId>(hash % FakeEngine::kVocab);
}

class FakeShard final : public engine::Shard {
 public:
  FakeShard(const ModelIdentity& identity, engine::ShardSpec spec) : identity_(identity), spec_(spec) {}
  const engine::ModelProfile& profile() const override { return profile_; }
  const engine::ShardSpec& spec() const override { return spec_; }
  const ModelIdentity& identity() const override { return identity_; }
  std::uint64_t bytes() const override { return FakeEngine::kShardBytes; }

 private:
  const engine::ModelProfile profile_ = FakeEngine::profile();
  const ModelIdentity identity_;
  const engine::ShardSpec spec_;
};

}  // namespace

engine::ModelProfile FakeEngine::profile() {
  engine::ModelProfile profile;
  profile.model_type = "fake";
  profile.hidden = kHidden;
  profile.vocab = kVocab;
  profile.max_positions = 4096;
  profile.layers.assign(kLayers, engine::PartSize{64, 8, 16});
  for (std::uint32_t layer = 0; layer <= kLayers; ++layer) profile.split_points.push_back(layer);
  return profile;
}

std::shared_ptr<const engine::Shard> FakeEngine::make_shard(const ModelIdentity& identity,
                                                            const engine::ShardSpec& spec) {
  return std::make_shared<const FakeShard>(identity, spec);
}

std::vector<TokenId> FakeEngine::expected(const std::vector<TokenId>& prompt,
                                          const std::vector<LayerRange>& stages, std::size_t tokens) {
  std::vector<std::uint64_t> state(stages.size(), 0);
  std::vector<TokenId> answer;
  const auto feed = [&](TokenId id) {
    std::string row = row_of_id(id);
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      state[stage] = hash_of(state[stage], stages[stage], row);
      row = row_of_hash(state[stage]);
    }
    return token_of(state.back());
  };
  TokenId next = 0;
  for (const TokenId id : prompt) next = feed(id);
  while (answer.size() < tokens) {
    answer.push_back(next);
    next = feed(next);
  }
  return answer;
}

void FakeEngine::set_gate(bool open) {
  {
    const std::lock_guard lock(mutex_);
    gate_ = open;
  }
  gate_changed_.notify_all();
}

void FakeEngine::fail_next_step(Status status) {
  const std::lock_guard lock(mutex_);
  fail_ = std::move(status);
}

void FakeEngine::fail_restores(bool fail) {
  const std::lock_guard lock(mutex_);
  restores_fail_ = fail;
}

void FakeEngine::set_copy_gate(bool open) {
  {
    const std::lock_guard lock(mutex_);
    copy_gate_ = open;
  }
  gate_changed_.notify_all();
}

void FakeEngine::set_budget(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  budget_ = bytes;
}

void FakeEngine::refuse_promises(bool refuse) {
  const std::lock_guard lock(mutex_);
  refuse_promises_ = refuse;
}

class FakeEngine::Promise final : public engine::CachePromise {
 public:
  explicit Promise(FakeEngine& engine) : engine_(engine) {}
  ~Promise() override {
    const std::lock_guard lock(engine_.mutex_);
    engine_.promised_ -= bytes_;
  }
  Status resize(std::uint64_t bytes) override {
    const std::lock_guard lock(engine_.mutex_);
    const std::uint64_t all = engine_.promised_ - bytes_ + bytes;
    if (bytes > bytes_ && (engine_.refuse_promises_ || all + engine_.loaded_ > engine_.budget_))
      return error(StatusCode::kResourceExhausted, "caches need {} bytes", bytes);
    engine_.promised_ = all;
    bytes_ = bytes;
    return absl::OkStatus();
  }

 private:
  FakeEngine& engine_;
  std::uint64_t bytes_ = 0;
};

std::unique_ptr<engine::CachePromise> FakeEngine::promise_caches() {
  return std::make_unique<Promise>(*this);
}

std::uint64_t FakeEngine::open_caches() const {
  const std::lock_guard lock(mutex_);
  return caches_.size();
}

StatusOr<std::shared_ptr<const engine::Shard>> FakeEngine::load(hub::Checkpoint&,
                                                                const ModelIdentity& identity,
                                                                const engine::ShardSpec& spec,
                                                                const engine::ProgressCallback& progress) {
  {
    const std::lock_guard lock(mutex_);
    if (promised_ + loaded_ + kShardBytes > budget_)
      return error(StatusCode::kResourceExhausted, "the shard needs {} bytes", kShardBytes);
    loaded_ += kShardBytes;
  }
  if (progress && !progress({false, kShardBytes, kShardBytes}))
    return error(StatusCode::kCancelled, "cancelled");
  return make_shard(identity, spec);
}

StatusOr<engine::CacheId> FakeEngine::open_cache(const std::shared_ptr<const engine::Shard>&,
                                                 const LayerRange& range, Position max_positions) {
  const std::lock_guard lock(mutex_);
  const engine::CacheId id{++last_cache_};
  caches_[id] = {range, max_positions, {}, false};
  return id;
}

Status FakeEngine::trim(engine::CacheId cache, Position position) {
  const std::lock_guard lock(mutex_);
  caches_.at(cache).hashes.resize(position);
  return absl::OkStatus();
}

namespace {

struct FakeBlock final : engine::SharedBlock {
  std::vector<std::uint64_t> hashes;
};

}  // namespace

StatusOr<std::shared_ptr<const engine::SharedBlock>> FakeEngine::share(engine::CacheId cache,
                                                                       std::uint32_t index) {
  const std::lock_guard lock(mutex_);
  const std::vector<std::uint64_t>& hashes = caches_.at(cache).hashes;
  if ((index + 1) * kKvBlockTokens > hashes.size())
    return error(StatusCode::kOutOfRange, "block {} is not full", index);
  auto block = std::make_shared<FakeBlock>();
  const auto first = hashes.begin() + static_cast<std::ptrdiff_t>(index * kKvBlockTokens);
  block->hashes.assign(first, first + kKvBlockTokens);
  return block;
}

Status FakeEngine::attach(engine::CacheId cache,
                          std::span<const std::shared_ptr<const engine::SharedBlock>> blocks,
                          Position tokens) {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t>& hashes = caches_.at(cache).hashes;
  for (const auto& block : blocks) {
    const auto& more = static_cast<const FakeBlock&>(*block).hashes;
    hashes.insert(hashes.end(), more.begin(), more.end());
  }
  hashes.resize(tokens);
  return absl::OkStatus();
}

StatusOr<std::uint64_t> FakeEngine::spill(engine::CacheId cache) {
  std::unique_lock lock(mutex_);
  gate_changed_.wait(lock, [&] { return copy_gate_; });
  Cache& found = caches_.at(cache);
  found.on_host = true;
  return found.hashes.size() * sizeof(std::uint64_t);
}

StatusOr<std::uint64_t> FakeEngine::restore(engine::CacheId cache) {
  std::unique_lock lock(mutex_);
  gate_changed_.wait(lock, [&] { return copy_gate_; });
  Cache& found = caches_.at(cache);
  if (restores_fail_) return error(StatusCode::kResourceExhausted, "needed 2 bytes, free 1");
  found.on_host = false;
  return found.hashes.size() * sizeof(std::uint64_t);
}

void FakeEngine::close_cache(engine::CacheId cache) {
  const std::lock_guard lock(mutex_);
  log_.emplace_back("close");
  caches_.erase(cache);
}

StatusOr<engine::CacheState> FakeEngine::cache_state(engine::CacheId cache) const {
  const std::lock_guard lock(mutex_);
  const Cache& found = caches_.at(cache);
  return engine::CacheState{found.range, static_cast<Position>(found.hashes.size()), found.max, 1, 1};
}

engine::MemoryUse FakeEngine::memory() const {
  const std::lock_guard lock(mutex_);
  engine::MemoryUse use;
  use.budget_bytes = budget_;
  use.weight_bytes = loaded_;
  use.caches = caches_.size();
  use.cache_blocks = caches_.size();
  use.cache_bytes = caches_.size() * 4096;
  for (const auto& [id, cache] : caches_)
    if (cache.on_host) use.spilled_bytes += cache.hashes.size() * sizeof(std::uint64_t);
  return use;
}

engine::SegmentResult FakeEngine::run(Cache& cache, const engine::Segment& segment) {
  engine::SegmentResult result;
  if (cache.on_host) {
    result.status = error(StatusCode::kFailedPrecondition, "the cache is in host memory");
    return result;
  }
  if (segment.start > cache.hashes.size() || segment.start + segment.rows > cache.max) {
    result.status =
        error(StatusCode::kOutOfRange, "start {} at cursor {}", segment.start, cache.hashes.size());
    return result;
  }
  cache.hashes.resize(segment.start);
  for (std::uint32_t row = 0; row < segment.rows; ++row) {
    const std::string input = segment.ids.empty() ? segment.hidden.substr(row * kHidden * 2, kHidden * 2)
                                                  : row_of_id(segment.ids[row]);
    cache.hashes.push_back(hash_of(cache.hashes.empty() ? 0 : cache.hashes.back(), cache.range, input));
    if (segment.want == engine::Want::kHidden) result.hidden += row_of_hash(cache.hashes.back());
  }
  if (segment.want != engine::Want::kTokens) return result;
  auto sampled = segment.sample_rows;
  if (sampled.empty()) sampled = {segment.rows - 1};
  for (const std::uint32_t row : sampled) {
    result.tokens.push_back({token_of(cache.hashes[segment.start + row]), -1.0f, {}});
  }
  return result;
}

StatusOr<std::vector<engine::SegmentResult>> FakeEngine::run_when_open(
    std::span<const engine::Segment> segments) {
  std::unique_lock lock(mutex_);
  gate_changed_.wait(lock, [&] { return gate_; });
  log_.emplace_back("end");
  if (!fail_.ok()) return std::exchange(fail_, absl::OkStatus());
  std::vector<engine::SegmentResult> results;
  for (const engine::Segment& segment : segments) results.push_back(run(caches_.at(segment.cache), segment));
  return results;
}

StatusOr<std::vector<engine::SegmentResult>> FakeEngine::step(const std::shared_ptr<const engine::Shard>&,
                                                              const LayerRange&,
                                                              std::span<const engine::Segment> segments) {
  return run_when_open(segments);
}

class FakeEngine::HeldStep final : public engine::PendingStep {
 public:
  HeldStep(FakeEngine& engine, std::vector<engine::Segment> segments)
      : engine_(engine), segments_(std::move(segments)) {}
  bool ended() const override { return false; }
  StatusOr<std::vector<engine::SegmentResult>> finish() override { return engine_.run_when_open(segments_); }

 private:
  FakeEngine& engine_;
  const std::vector<engine::Segment> segments_;
};

StatusOr<std::unique_ptr<engine::PendingStep>> FakeEngine::begin(
    const std::shared_ptr<const engine::Shard>& shard, const LayerRange& range,
    std::vector<engine::Segment> segments) {
  {
    const std::lock_guard lock(mutex_);
    ++steps_begun_;
    beginner_ = std::this_thread::get_id();
    log_.emplace_back("begin");
  }
  begun_.notify_all();
  if (steps_at_once_ == 1) return Engine::begin(shard, range, std::move(segments));
  return std::make_unique<HeldStep>(*this, std::move(segments));
}

bool FakeEngine::wait_begun(std::size_t steps, std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  return begun_.wait_for(lock, longest, [&] { return steps_begun_ >= steps; });
}

std::thread::id FakeEngine::beginner() const {
  const std::lock_guard lock(mutex_);
  return beginner_;
}

std::vector<std::string> FakeEngine::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

}  // namespace mesh
