#pragma once

#include "common/json/json.h"
#include "common/metrics/metrics.h"
#include "node/node.h"

namespace mesh {

/// Alive, and what is loaded:
/// {"status":"ok","shards":[{"layers":[a,b],"state","bytes_done","bytes_total"}],"sessions"}.
json::Value health_of(Node& node);

/// Writes a node's figures into a registry: counters by what was added since the last call. One thread at a
/// time.
class NodeMetrics {
 public:
  explicit NodeMetrics(metrics::Registry& registry);
  void update(const NodeFigures& now);

 private:
  metrics::Gauge sessions_, waiting_, cache_bytes_, cache_blocks_, weight_bytes_, budget_bytes_, kept_bytes_;
  metrics::Counter decode_steps_, prefill_steps_, decode_rows_, prefill_rows_, layer_rows_;
  metrics::Counter segments_, seconds_, duplicates_, refused_, resent_;
  metrics::Counter frames_, raw_bytes_, wire_bytes_, failures_;
};

}  // namespace mesh
