#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/wire/control.h"
#include "tracker/registry/coverage.h"

namespace mesh::tracker {

/// kRemembered: known from the store after a start, not heard yet. kAlive: within its lease. kLost: its lease
/// ended; kept for Options::recopy_wait so that what it held is not copied at once. A node that left has no
/// record.
enum class NodePresence { kRemembered, kAlive, kLost };

/// All that the tracker knows of one node; one record per identity for ever.
struct NodeRecord {
  NodeId id;
  std::string public_key;  ///< 32 bytes
  wire::Join facts;        ///< of its last join; `shards` and `stamp` are kept current by heartbeats
  NodePresence presence = NodePresence::kRemembered;
  std::uint64_t lease = 0;
  bool draining = false;
  TimePoint expires{};         ///< of the lease; of the memory of it when not alive
  TimePoint last_heartbeat{};  ///< when the last one was read
  wire::NodeLoad load;
  std::vector<wire::StageTime> stage_times;
  std::vector<wire::LinkFigure> links;
};

/// Nodes, their leases and what they hold. Pure: time is an argument; one thread at a time.
///
/// Leases (proto-docs/directives.md): a heartbeat renews only if it names a reply of its lease newer than the
/// one that renewed last. The node counts from when it sent that heartbeat, the registry from when it
/// answers, so the node always expires first.
class Registry {
 public:
  struct Options {
    Duration lease = std::chrono::seconds(6);
    Duration recopy_wait = std::chrono::minutes(5);  ///< before lost copies of a covered layer count as gone
    /// With at least this many nodes, more than a third of them falling silent within one lease makes the
    /// tracker suspect itself; with fewer, a third says nothing.
    std::uint32_t suspect_from = 6;
  };
  explicit Registry(Options options) : options_(options) {}

  /// Node known from the store: its layers count as held until one lease has passed.
  void restore(const NodeId& id, std::string public_key, wire::Join facts, TimePoint now);

  struct Granted {
    std::uint64_t lease = 0;
    std::uint64_t reply = 0;
  };
  /// The signature has been checked. A second join of an identity replaces its record's facts and ends its
  /// old lease. kFailedPrecondition for a stamp that is not above the last one seen (a replay);
  /// kInvalidArgument for an epoch that no tracker here can have given out.
  StatusOr<Granted> join(const NodeId& id, std::string public_key, const wire::Join& join, TimePoint now);

  struct Beat {
    std::uint64_t reply = 0;
    bool renewed = false;
  };
  /// kNotFound: unknown node, or its lease ended (join again). kAborted: another lease. kFailedPrecondition:
  /// replay. kInvalidArgument: as join().
  StatusOr<Beat> heartbeat(const NodeId& id, const wire::Heartbeat& beat, TimePoint now);

  /// The owner takes the node away: its record goes at once. Errors as heartbeat().
  Status leave(const NodeId& id, const wire::Leave& leave, TimePoint now);

  /// Ends leases and memories that are over; returns the nodes that ceased to be alive.
  std::vector<NodeId> expire(TimePoint now);
  /// When expire() next has something to do.
  std::optional<TimePoint> next_expiry() const;

  const std::map<NodeId, NodeRecord>& nodes() const { return nodes_; }
  /// Changes whenever a node comes or goes, drains, or holds something else: what plans depend on.
  std::uint64_t version() const { return version_; }
  const NodeRecord* find(const NodeId& id) const;
  /// What alive nodes say they hold of one identity; kRemembered and kLost nodes' layers are `held`. Shards
  /// that drain and all of a draining node take no new session and are in none of the lists. Of a shard that
  /// is being loaded the layers that are ready count as such, unless the node has other ready ones beside
  /// them; of several that are being loaded those of the first.
  Coverage coverage(const ModelIdentity& model, std::uint32_t layer_count) const;
  /// Highest epoch that any node has ever named, or that was given out.
  Epoch highest_epoch() const { return highest_epoch_; }
  void given_out(Epoch epoch) { highest_epoch_ = std::max(highest_epoch_, epoch); }
  /// True from when more than a third fell silent within one lease until half of those are back (or as many
  /// others came): no new directives then. An operator ends it by trust_again().
  bool suspects_itself() const { return suspect_; }
  void trust_again() { suspect_ = false; }

 private:
  Status check_epoch(Epoch named) const;
  StatusOr<NodeRecord*> current(const NodeId& id, std::uint64_t lease, const wire::Stamp& stamp,
                                TimePoint now);
  void note_silence(TimePoint now);
  void note_return();
  std::size_t alive() const;

  Options options_;
  std::map<NodeId, NodeRecord> nodes_;
  std::map<NodeId, std::uint64_t>
      acknowledged_;                          ///< newest reply that a heartbeat of the current lease named
  std::map<NodeId, TimePoint> silent_since_;  ///< within the last lease
  std::uint64_t next_lease_ = 1;
  std::uint64_t next_reply_ = 1;
  std::uint64_t version_ = 0;
  Epoch highest_epoch_;
  bool suspect_ = false;
  std::size_t trusted_from_ = 0;  ///< alive nodes that end the suspicion: half of the silent ones are back
};

}  // namespace mesh::tracker
