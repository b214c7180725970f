#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "node/agent/agent.h"
#include "tests/sim/network.h"

namespace mesh::sim {

/// Mistakes of an agent, planted around the real one.
struct AgentFaults {
  bool accept_old_epochs = false;  ///< an old directive reaches the core as if it were of the newest epoch
};

/// A node's agent on the simulated network: the real core, loads that take a while, an epoch that survives
/// restarts.
class SimAgent {
 public:
  struct Setup {
    wire::Join self;
    NodeId node;
    std::string tracker_url;
    AgentFaults faults;
  };

  /// `offer` hears which ranges the node is ready to run.
  SimAgent(Setup setup, Timeline& timeline, Network& network, Random& random,
           std::function<void(const std::vector<LayerRange>&)> offer,
           std::function<void(const std::string&)> violation);

  void start();
  void stop();
  std::uint64_t stale_directives() const { return stale_; }

 private:
  void drain();
  void send(const std::string& route, std::string body);
  void take_reply(const std::string& route, const StatusOr<std::string>& answer);
  void take_heartbeat_reply(const std::string& body);
  void load(const BeginLoad& order);
  void note_ready(const BeginLoad& order, std::uint32_t layers);
  void drop(const BeginDrop& order);
  void carried_out(const wire::DirectiveId& id);
  void publish();
  std::function<void()> guarded(std::function<void()> what);

  Setup setup_;
  Timeline& timeline_;
  Network& network_;
  Random& random_;
  std::function<void(const std::vector<LayerRange>&)> offer_;
  std::function<void(const std::string&)> violation_;
  std::unique_ptr<AgentCore> core_;
  std::vector<wire::ShardStatus> shards_;
  std::map<wire::DirectiveId, bool> old_;  ///< whether it was of an older epoch than the node had seen
  Epoch stored_epoch_;
  std::uint64_t starts_ = 0, life_ = 0, stale_ = 0;
  std::optional<TimePoint> armed_;
};

}  // namespace mesh::sim
