#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <variant>

#include "common/base/bounded_queue.h"
#include "common/host/host_share.h"
#include "common/log/log.h"
#include "node/agent/agent.h"
#include "node/agent/agent_state.h"
#include "node/agent/model_source.h"
#include "node/agent/tracker_link.h"
#include "node/node.h"
#include "node/pipeline/recent_stamps.h"

namespace mesh {

/// Gives an AgentCore what it lacks: a clock, signed calls to the tracker, a thread that carries out
/// directives, and the node's state. Three threads: the core's, one for calls, one for directives; none waits
/// for another.
class AgentLoop {
 public:
  struct Parts {
    Node& node;
    HostShare& share;
    std::shared_ptr<ModelSource> models;
    TrackerLink::Options tracker;
    std::shared_ptr<TrackerLink::Pin> pin;
    AgentStateFile state;
    std::shared_ptr<pipeline::RecentStamps> stamps;
    log::Logger log;
    /// Called once, from the core's thread, when the agent cannot go on.
    std::function<void(const Status&)> on_give_up;
  };

  AgentLoop(AgentOptions options, Parts parts);
  ~AgentLoop();
  AgentLoop(const AgentLoop&) = delete;
  AgentLoop& operator=(const AgentLoop&) = delete;

  void begin_drain();
  /// Says goodbye; waits at most a few seconds for the tracker. A load or drop under way ends with the
  /// destructor, which Node::stop() should precede.
  void leave();

 private:
  using Event = std::function<void(TimePoint)>;
  using Call = std::variant<SendJoin, SendHeartbeat, SendLeave>;
  using Order = std::variant<BeginLoad, BeginDrop>;

  void stop_talking();
  void run_core();
  void run_calls();
  void run_orders();
  void apply(AgentEffect& effect);
  void refresh_figures();
  void refresh_admission(TimePoint now);
  void make_call(TrackerLink& link, const SendJoin& call);
  void make_call(TrackerLink& link, const SendHeartbeat& call);
  void make_call(TrackerLink& link, const SendLeave& call);
  void report_failure(const Status& status, const wire::ControlError& refusal);
  Status carry_out(const BeginLoad& order);
  Status carry_out(const BeginDrop& order);

  const SteadyClock clock_;
  Parts parts_;
  AgentCore core_;
  TrackerLink link_;
  std::optional<bool> admits_;
  std::atomic<bool> cancelled_ = false;
  BoundedQueue<Event> events_{1024};
  BoundedQueue<Call> calls_{16};
  BoundedQueue<Order> orders_{16};
  std::thread core_thread_;
  std::thread call_thread_;
  std::thread order_thread_;
};

}  // namespace mesh
