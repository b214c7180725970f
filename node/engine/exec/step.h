#pragma once

#include <atomic>
#include <optional>

#include "node/engine/cache/cache_table.h"
#include "node/engine/device/stage_forward.h"
#include "node/engine/exec/local_step.h"
#include "node/engine/exec/stage_batch.h"
#include "node/engine/exec/workspace.h"
#include "node/engine/weights/parts.h"

namespace mesh::engine {

struct Forward;

/// Begins steps; used by one thread at a time.
class StepRunner {
 public:
  /// `observer`: null, or shown all operations.
  StepRunner(DeviceOps& ops, CacheTable& caches, OperationObserver* observer)
      : ops_(ops), caches_(caches), observer_(observer), workspace_(ops, caches.faults()) {}

  /// Engine::begin, for a step whose shard holds `range`. Afterwards at most its last forward is under way.
  void begin(LocalStep& step, const LayerRange& range);

  /// Forwards that went op by op. Any thread.
  std::uint64_t op_forwards() const { return op_forwards_; }

 private:
  struct SampledRow;
  class Sources;

  /// Borrows the segment's cache and makes it writable; the segment then takes part.
  Status join(LocalStep& step, const LayerRange& range, std::size_t index, bool staged, Sources& sources);
  /// Its input comes from the host: waits for the step that gives it.
  static Status take_from_source(LiveSegment& live);
  /// Runs them together, or, when there is no memory for that, one by one; by the device's own way if it
  /// takes `model`.
  void forward(LocalStep& step, const LayerRange& range, const StageModel* model,
               std::span<LiveSegment> live);
  Status try_forward(LocalStep& step, const LayerRange& range, const StageModel* model,
                     std::span<LiveSegment> live);
  /// The model for the device's own forward, when it has one that takes the model and these segments.
  std::optional<StageModel> staged(const LocalStep& step, const LayerRange& range);
  Status begin_staged(LocalStep& step, const StageModel& model, std::span<LiveSegment> live);
  Status compute(const LoadedShard& shard, const LayerRange& range, std::span<LiveSegment> live);
  Status read_input(Forward& forward, const LoadedShard& shard, std::span<const LiveSegment> live,
                    std::span<const Position> positions, Matrix x);
  void read_hidden(const Segment& segment, Matrix rows, std::string& hidden);
  Status sample_rows(Forward& forward, const LoadedShard& shard, std::span<const SampledRow> sampled,
                     Matrix x);

  DeviceOps& ops_;
  CacheTable& caches_;
  OperationObserver* const observer_;
  Workspace workspace_;
  StageModels models_;
  std::atomic<std::uint64_t> op_forwards_ = 0;
};

}  // namespace mesh::engine
