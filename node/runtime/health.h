#pragma once

#include <map>

#include "common/json/json.h"
#include "common/metrics/metrics.h"
#include "node/node.h"

namespace mesh {

/// Alive, and what is loaded:
/// {"status":"ok","shards":[{"layers":[a,b],"state","bytes_done","bytes_total"}],"sessions"}.
json::Value health_of(Node& node);

/// The families of docs/metrics.md that node and tracker share. What happens once is counted as the observer
/// hears it, the rest at update().
class NodeMetrics final : public NodeObserver {
 public:
  explicit NodeMetrics(metrics::Registry& registry);
  /// Writes a node's figures: counters by what was added since the last call. One thread at a time.
  void update(const NodeFigures& now);

  void on_step(wire::Lane lane, Duration took) override;
  void on_frame(std::size_t body_bytes) override;
  void on_malformed_frame() override;
  void on_refused_segment(wire::AnswerCode why) override;

 private:
  metrics::Gauge sessions_, waiting_, cache_bytes_, blocks_used_, blocks_cached_, blocks_capacity_,
      weight_bytes_, budget_bytes_, kept_bytes_, spilled_bytes_;
  metrics::Counter decode_steps_, prefill_steps_, decode_rows_, prefill_rows_, layer_rows_;
  metrics::Counter segments_, duplicates_, resent_, prefix_hits_, prefix_misses_, prefix_evictions_, spills_,
      dropped_caches_;
  metrics::Counter frames_, raw_bytes_, wire_bytes_, failures_, received_bytes_, malformed_;
  std::map<wire::AnswerCode, metrics::Counter> refused_;
  metrics::Histogram decode_seconds_, prefill_seconds_;
};

}  // namespace mesh
