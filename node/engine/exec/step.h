#pragma once

#include <atomic>
#include <optional>

#include "node/engine/cache/cache_table.h"
#include "node/engine/device/stage_forward.h"
#include "node/engine/exec/workspace.h"
#include "node/engine/weights/parts.h"

namespace mesh::engine {

struct Forward;

/// Executes steps; used by one thread at a time.
class StepRunner {
 public:
  /// `observer`: null, or shown all operations.
  StepRunner(DeviceOps& ops, CacheTable& caches, OperationObserver* observer)
      : ops_(ops), caches_(caches), observer_(observer), workspace_(ops, caches.faults()) {}

  /// Engine::step, for a shard that holds `range`.
  StatusOr<std::vector<SegmentResult>> run(const LoadedShard& shard, const LayerRange& range,
                                           std::span<const Segment> segments);

  /// Forwards that went op by op. Any thread.
  std::uint64_t op_forwards() const { return op_forwards_; }

 private:
  /// A segment that takes part.
  struct Live {
    const Segment* segment;
    SegmentResult* result;
    std::shared_ptr<SessionCache> cache;
    std::int64_t first_row = 0;  // in its forward
  };

  struct SampledRow;

  /// Runs them together, or, when there is no memory for that, one by one.
  void forward(const LoadedShard& shard, const LayerRange& range, std::span<Live> live);
  Status try_forward(const LoadedShard& shard, const LayerRange& range, std::span<Live> live);
  /// The model for the device's own forward, when it has one that takes the model and these segments.
  std::optional<StageModel> staged(const LoadedShard& shard, const LayerRange& range,
                                   std::span<const Live> live) const;
  Status compute_staged(const StageModel& model, std::span<Live> live);
  Status compute(const LoadedShard& shard, const LayerRange& range, std::span<Live> live);
  Status read_input(Forward& forward, const LoadedShard& shard, std::span<const Live> live,
                    std::span<const Position> positions, Matrix x);
  void read_hidden(const Segment& segment, Matrix rows, std::string& hidden);
  Status sample_rows(Forward& forward, const LoadedShard& shard, std::span<const SampledRow> sampled,
                     Matrix x);

  DeviceOps& ops_;
  CacheTable& caches_;
  OperationObserver* const observer_;
  Workspace workspace_;
  std::atomic<std::uint64_t> op_forwards_ = 0;
};

}  // namespace mesh::engine
