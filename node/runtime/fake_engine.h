#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "node/engine/engine.h"

namespace mesh {

/// An engine without a model: a row's output is a hash of the range and of every input row up to it, so that
/// any hole, doubled or stale row changes all that follows. For tests.
class FakeEngine final : public engine::Engine {
 public:
  /// With more than one step at once it has a device: begin() returns, and steps run when the gate is open.
  explicit FakeEngine(std::size_t steps_at_once = 1) : steps_at_once_(steps_at_once) {}

  static constexpr std::uint32_t kLayers = 6;
  static constexpr std::uint32_t kHidden = 8;
  static constexpr std::uint32_t kVocab = 1000;

  static engine::ModelProfile profile();
  static std::shared_ptr<const engine::Shard> make_shard(const ModelIdentity& identity,
                                                         const engine::ShardSpec& spec);
  /// The greedy ids that stages of these ranges give after `prompt`; computed row by row, without caches.
  static std::vector<TokenId> expected(const std::vector<TokenId>& prompt,
                                       const std::vector<LayerRange>& stages, std::size_t tokens);

  /// While closed, steps wait at the gate.
  void set_gate(bool open);
  /// Waits until `steps` were begun; false after `longest`.
  bool wait_begun(std::size_t steps, std::chrono::milliseconds longest);
  /// Who began the last one.
  std::thread::id beginner() const;
  /// Begins, ends and what was done to caches, in order.
  std::vector<std::string> log() const;
  /// The next step fails as a whole, or one segment of it.
  void fail_next_step(Status status);
  /// Loads and promises are counted against it; a shard takes kShardBytes.
  void set_budget(std::uint64_t bytes);
  static constexpr std::uint64_t kShardBytes = 4096;
  /// Promises of more are refused, as if something had taken the memory just before.
  void refuse_promises(bool refuse);
  void fail_restores(bool fail);
  /// While closed, caches that go to host memory or come back wait at it.
  void set_copy_gate(bool open);
  std::uint64_t open_caches() const;

  engine::Device device() const override { return engine::Device::kCpu; }
  engine::ComputeType compute() const override { return engine::ComputeType::kFloat32; }
  const engine::DeviceNote& device_note() const override { return note_; }
  StatusOr<engine::ShardNeeds> shard_needs(hub::Checkpoint&, const ModelIdentity&,
                                           const engine::ShardSpec&) const override {
    return engine::ShardNeeds{};
  }
  StatusOr<std::shared_ptr<const engine::Shard>> load(hub::Checkpoint&, const ModelIdentity& identity,
                                                      const engine::ShardSpec& spec,
                                                      const engine::ProgressCallback& progress) override;
  std::unique_ptr<engine::CachePromise> promise_caches() override;
  StatusOr<engine::CacheId> open_cache(const std::shared_ptr<const engine::Shard>&, const LayerRange& range,
                                       Position max_positions) override;
  Status trim(engine::CacheId cache, Position position) override;
  StatusOr<std::shared_ptr<const engine::SharedBlock>> share(engine::CacheId cache,
                                                             std::uint32_t index) override;
  Status attach(engine::CacheId cache, std::span<const std::shared_ptr<const engine::SharedBlock>> blocks,
                Position tokens) override;
  StatusOr<std::uint64_t> spill(engine::CacheId cache) override;
  StatusOr<std::uint64_t> restore(engine::CacheId cache) override;
  void close_cache(engine::CacheId cache) override;
  StatusOr<engine::CacheState> cache_state(engine::CacheId cache) const override;
  engine::MemoryUse memory() const override;
  StatusOr<std::vector<engine::SegmentResult>> step(const std::shared_ptr<const engine::Shard>& shard,
                                                    const LayerRange& range,
                                                    std::span<const engine::Segment> segments) override;
  std::size_t steps_at_once() const override { return steps_at_once_; }
  StatusOr<std::unique_ptr<engine::PendingStep>> begin(const std::shared_ptr<const engine::Shard>& shard,
                                                       const LayerRange& range,
                                                       std::vector<engine::Segment> segments) override;

 private:
  struct Cache {
    LayerRange range;
    Position max = 0;
    std::vector<std::uint64_t> hashes;  ///< of each row so far
    bool on_host = false;
  };
  class HeldStep;
  class Promise;
  StatusOr<std::vector<engine::SegmentResult>> run_when_open(std::span<const engine::Segment> segments);
  engine::SegmentResult run(Cache& cache, const engine::Segment& segment);

  const std::size_t steps_at_once_;
  const engine::DeviceNote note_;
  mutable std::mutex mutex_;
  std::condition_variable gate_changed_, begun_;
  std::vector<std::string> log_;
  std::size_t steps_begun_ = 0;
  std::thread::id beginner_;
  bool gate_ = true, copy_gate_ = true;
  bool restores_fail_ = false;
  std::uint64_t budget_ = std::uint64_t{1} << 30;
  std::uint64_t loaded_ = 0, promised_ = 0;  ///< bytes
  bool refuse_promises_ = false;
  Status fail_;
  std::uint64_t last_cache_ = 0;
  std::map<engine::CacheId, Cache> caches_;
};

}  // namespace mesh
