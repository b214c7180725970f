#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "node/engine/cache/cache_table.h"
#include "node/engine/device/stage_forward.h"
#include "node/engine/weights/parts.h"

namespace mesh::engine {

/// A segment that takes part in a step.
struct LiveSegment {
  const Segment* segment = nullptr;
  SegmentResult* result = nullptr;
  std::shared_ptr<SessionCache> cache;
  std::string_view hidden;            ///< its input, unless that is ids or still on the device
  std::int64_t first_row = 0;         ///< in its forward
  const void* device_rows = nullptr;  ///< its input there, bfloat16
};

/// A forward by the device's own way, and where its results go. Stays where it is while it is under way.
struct StagedForward {
  struct Sampled {
    LiveSegment* live;
    Position position;   ///< of the token to come
    std::size_t logits;  ///< index, when needed
  };
  std::span<LiveSegment> live;
  StageBatch batch;
  std::vector<Sampled> sampled;
  std::vector<std::vector<float>> logits;
};

/// A step of LocalEngine: what it uses, what it has given so far, and the forward that may be under way. Once
/// it has begun, one thread may finish it while another begins a step with its rows.
class LocalStep final : public PendingStep {
 public:
  LocalStep(DeviceOps& ops, CacheTable& caches, std::shared_ptr<const LoadedShard> shard,
            std::vector<Segment> segments);
  ~LocalStep() override { end_forward(); }
  LocalStep(const LocalStep&) = delete;

  bool ended() const override;
  StatusOr<std::vector<SegmentResult>> finish() override;

  const LoadedShard& shard() const { return *shard_; }
  const std::shared_ptr<const LoadedShard>& shard_handle() const { return shard_; }
  std::span<const Segment> segments() const { return segments_; }
  SegmentResult& result(std::size_t index) { return results_[index]; }
  std::vector<LiveSegment>& live() { return live_; }

  /// The forward was begun by the device; only one is.
  void begun(std::unique_ptr<StagedForward> forward);
  /// Waits for the forward under way, if one is, and takes its results.
  void end_forward();
  /// Cursors and results of segments whose forward ended with `status`.
  void settle(std::span<LiveSegment> live, const Status& status);

  /// Keeps the results here while a step begins with them, until as many take_back(): a finish() meanwhile
  /// copies them. kFailedPrecondition: it was finished.
  Status lend();
  void take_back();
  /// Of a segment, as far as it is known.
  Status status(std::size_t index) const;
  /// Where the device has the hidden states that segment `index` gives; null: they are in its result, or
  /// come there with end_forward().
  const void* device_rows(std::size_t index) const;

 private:
  void take_results();

  DeviceOps& ops_;
  CacheTable& caches_;
  const std::shared_ptr<const LoadedShard> shard_;
  const std::vector<Segment> segments_;
  std::vector<SegmentResult> results_;
  std::vector<LiveSegment> live_;
  mutable std::mutex mutex_;  ///< never held while the device is waited for
  std::condition_variable ended_;
  std::unique_ptr<StagedForward> staged_;
  bool ending_ = false;    ///< a thread waits for the device
  std::size_t lent_ = 0;   ///< to so many steps that begin
  bool finished_ = false;  ///< finish() has given the results away
};

/// Whether sampling needs more than the arg-max that the device finds.
bool needs_logits(const Segment& segment);

}  // namespace mesh::engine
