#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "node/runtime/lane.h"

namespace mesh {

/// All lanes of a node, made when they are first needed. Owned by the node's strand; counters() from any
/// thread.
class Lanes {
 public:
  Lanes(LaneOptions options, LaneEvents& events) : options_(std::move(options)), events_(events) {}

  /// False when the lane is full: then the sending has failed.
  bool send(pipeline::OutFrame frame);
  bool send(pipeline::OutAsk ask);
  bool send(pipeline::OutTokens tokens);
  bool send(pipeline::OutReport report);

  /// Ends lanes that were not used for a while.
  void end_idle(TimePoint now);
  void stop();
  std::vector<LinkCounters> counters() const;

 private:
  bool send(const std::string& url, wire::Lane lane, Lane::Item item);

  const LaneOptions options_;
  LaneEvents& events_;
  mutable std::mutex mutex_;  ///< guards the map, not the lanes
  std::map<std::pair<std::string, wire::Lane>, std::unique_ptr<Lane>> lanes_;
  std::map<std::string, std::weak_ptr<Precedence>> precedence_;  ///< by URL
};

}  // namespace mesh
