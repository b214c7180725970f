#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/sim/network.h"
#include "tests/sim/route_source.h"
#include "tracker/plan/desk.h"
#include "tracker/registry/registry.h"
#include "tracker/route/route.h"

namespace mesh::sim {

/// The tracker's membership on the simulated network: the real registry, planner, directive desk and router.
class SimTracker final : public RouteSource {
 public:
  struct Setup {
    std::string url;
    tracker::ModelProfile model;
    std::uint32_t head_layers = 0;
    wire::HopAddress embedded;
    double stale_directives = 0;  ///< chance that a heartbeat's reply also carries an order of an old epoch
  };

  SimTracker(Setup setup, Timeline& timeline, Network& network, Random& random,
             std::function<void(const NodeId&)> on_lost);

  std::optional<std::vector<wire::HopAddress>> route(const head::RouteWanted& wanted) override;
  bool complete() const;
  /// Hops on layers of shards that were still being loaded.
  std::uint64_t early_hops() const { return early_hops_; }

 private:
  StatusOr<std::string> handle(const std::string& route, const std::string& body);
  std::string join(const NodeId& node, const wire::Join& message);
  std::string heartbeat(const NodeId& node, const wire::Heartbeat& message);
  void plan();
  void watch();
  tracker::Coverage coverage() const;
  std::vector<wire::CatalogueEntry> catalogue() const;

  Setup setup_;
  Timeline& timeline_;
  Random& random_;
  std::function<void(const NodeId&)> on_lost_;
  tracker::Registry registry_{tracker::Registry::Options{}};
  tracker::DirectiveDesk desk_;
  Epoch epoch_;  ///< stored
  std::vector<wire::Directive> issued_;
  std::uint64_t early_hops_ = 0;
};

}  // namespace mesh::sim
