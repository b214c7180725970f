#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "common/metrics/metrics.h"
#include "common/net/server.h"
#include "node/runtime/health.h"
#include "tracker/gateway/respond.h"
#include "tracker/runtime/admissions.h"
#include "tracker/runtime/head_loop.h"
#include "tracker/runtime/membership.h"

namespace mesh::tracker {

/// The tracker's metric families (docs/metrics.md), those of its embedded node among them. Thread-safe.
class TrackerMetrics final : public AdmissionObserver {
 public:
  TrackerMetrics();

  /// Hears the embedded node.
  NodeObserver& node() { return node_; }
  void request_done(const net::RequestRecord& record);
  void answer_done(const gateway::AnswerFigures& figures);
  void on_opened(Duration waited) override;
  void on_refused(std::string_view reason) override;
  /// The exposition text with the present figures.
  std::string text(Node& node, const HeadLoop& head, const Membership& membership);

 private:
  metrics::Registry registry_;
  NodeMetrics node_;
  metrics::Histogram first_token_, admission_;
  metrics::Counter generated_, prompt_, failovers_;
  metrics::Gauge alive_, draining_, silent_, epoch_, answers_, waiting_;
  std::mutex mutex_;
};

}  // namespace mesh::tracker
