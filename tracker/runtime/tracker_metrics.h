#pragma once

#include <mutex>
#include <string>

#include "common/metrics/metrics.h"
#include "common/net/server.h"
#include "node/runtime/health.h"
#include "tracker/gateway/respond.h"
#include "tracker/runtime/head_loop.h"
#include "tracker/runtime/membership.h"

namespace mesh::tracker {

/// The tracker's metric families (docs/metrics.md), those of its embedded node among them. Thread-safe.
class TrackerMetrics {
 public:
  TrackerMetrics();

  /// Hears the embedded node.
  NodeObserver& node() { return node_; }
  void request_done(const net::RequestRecord& record);
  void answer_done(const gateway::AnswerFigures& figures);
  /// The exposition text with the present figures.
  std::string text(Node& node, const HeadLoop& head, const Membership& membership);

 private:
  metrics::Registry registry_;
  NodeMetrics node_;
  metrics::Histogram first_token_;
  metrics::Counter generated_, prompt_, failovers_;
  metrics::Gauge alive_, draining_, silent_, epoch_, answers_;
  std::mutex mutex_;
};

}  // namespace mesh::tracker
