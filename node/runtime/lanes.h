#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "node/runtime/lane.h"

namespace mesh {

/// All lanes of a node, made when they are first needed, at most `most`: for one more the lane that was idle
/// longest ends. Owned by the node's strand; counters() from any thread.
class Lanes {
 public:
  /// A decode and a bulk lane to each of 256 next hops; two threads each.
  static constexpr std::size_t kMost = 512;

  Lanes(LaneOptions options, LaneEvents& events, std::size_t most = kMost)
      : options_(std::move(options)), events_(events), most_(most) {}

  /// kResourceExhausted when the lane is full, when all lanes are busy or when the system has no thread for a
  /// new one: then the sending has failed.
  Status send(pipeline::OutFrame frame);
  Status send(pipeline::OutAsk ask);
  Status send(pipeline::OutTokens tokens);
  Status send(pipeline::OutReport report);

  /// Opens connections over which something will go soon, if that needs no other lane to end.
  void warm(const std::string& url, wire::Lane lane);
  /// Ends lanes that were not used for a while.
  void end_idle(TimePoint now);
  void stop();
  std::size_t size() const;
  std::vector<LinkCounters> counters() const;

 private:
  using Key = std::pair<std::string, wire::Lane>;

  Status send(const std::string& url, wire::Lane lane, Lane::Item item);
  StatusOr<Lane*> find_or_start(const Key& key);
  /// The lane that was idle longest, out of the map; null when all are busy.
  std::unique_ptr<Lane> take_idlest();

  const LaneOptions options_;
  LaneEvents& events_;
  const std::size_t most_;
  mutable std::mutex mutex_;  ///< guards the map, not the lanes
  std::map<Key, std::unique_ptr<Lane>> lanes_;
  std::map<std::string, std::weak_ptr<Precedence>> precedence_;  ///< by URL
};

}  // namespace mesh
