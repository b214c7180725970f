#include "tracker/registry/registry.h"

#include <algorithm>

namespace mesh::tracker {
namespace {

/// Equal but for progress.
bool same_holdings(const std::vector<wire::ShardStatus>& a, const std::vector<wire::ShardStatus>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return one.model == other.model && one.layers == other.layers && one.state == other.state &&
           one.ready == other.ready;
  });
}

/// Whether the ready layers of a shard that is being loaded make a copy: they do unless the node has others
/// of this model beside them, since a route meets a node once. Of several such shards the first one does.
bool is_copy(const wire::ShardStatus& loading, const std::vector<wire::ShardStatus>& shards) {
  const LayerRange ready = layers_in_use(loading);
  return !ready.empty() && std::ranges::all_of(shards, [&](const wire::ShardStatus& other) {
    const LayerRange others = layers_in_use(other);
    if (other.model != loading.model || &other == &loading || others.empty()) return true;
    return ready.contains(others) || (other.state == wire::ShardState::kLoading && &loading < &other);
  });
}

/// Plans are some a minute at most, so a node is never ahead by more; and no number that a node names,
/// however often, takes the mesh near the end of epochs.
constexpr std::uint64_t kMostEpochsAhead = std::uint64_t{1} << 32;

}  // namespace

Status Registry::check_epoch(Epoch named) const {
  if (named.value <= highest_epoch_.value || named.value - highest_epoch_.value <= kMostEpochsAhead)
    return absl::OkStatus();
  return error(
      StatusCode::kInvalidArgument,
      "highest_epoch {} is too far above {}, the highest that is known here: remove the node's state file "
      "(agent.json in its data folder) if it was damaged",
      named.value, highest_epoch_.value);
}

void Registry::restore(const NodeId& id, std::string public_key, wire::Join facts, TimePoint now) {
  highest_epoch_ = std::max(highest_epoch_, facts.highest_epoch);
  ++version_;
  // The stamp stays in force: a join recorded before the restart must not be accepted again.
  NodeRecord record;
  record.id = id;
  record.public_key = std::move(public_key);
  record.facts = std::move(facts);
  record.presence = NodePresence::kRemembered;
  record.expires = now + options_.lease;
  nodes_[id] = std::move(record);
}

StatusOr<Registry::Granted> Registry::join(const NodeId& id, std::string public_key, const wire::Join& join,
                                           TimePoint now) {
  MESH_RETURN_IF_ERROR(check_epoch(join.highest_epoch));
  NodeRecord& record = nodes_[id];
  if (!record.public_key.empty() && join.stamp <= record.facts.stamp) {
    return error(StatusCode::kFailedPrecondition,
                 "join {}.{} is not newer than the last message of this node ({}.{}): a replay",
                 join.stamp.start, join.stamp.number, record.facts.stamp.start, record.facts.stamp.number);
  }
  const bool another_run = join.stamp.start != record.facts.stamp.start;
  record.id = id;
  record.public_key = std::move(public_key);
  record.facts = join;
  record.presence = NodePresence::kAlive;
  record.lease = next_lease_++;
  record.draining = false;
  record.expires = now + options_.lease;
  record.last_heartbeat = now;
  if (another_run) {
    record.load = {};
    record.stage_times.clear();
    record.links.clear();
  }
  acknowledged_[id] = 0;
  ++version_;
  silent_since_.erase(id);
  highest_epoch_ = std::max(highest_epoch_, join.highest_epoch);
  note_return();
  return Granted{record.lease, next_reply_++};
}

StatusOr<NodeRecord*> Registry::current(const NodeId& id, std::uint64_t lease, const wire::Stamp& stamp,
                                        TimePoint now) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end())
    return error(StatusCode::kNotFound, "node {} has not joined: join first", id.hex());
  NodeRecord& record = found->second;
  if (record.presence != NodePresence::kAlive || now >= record.expires) {
    return error(StatusCode::kNotFound, "the lease of node {} has ended: join again", id.hex());
  }
  if (lease != record.lease) {
    return error(StatusCode::kAborted, "lease {} of node {} was replaced by lease {}: join again", lease,
                 id.hex(), record.lease);
  }
  if (stamp <= record.facts.stamp) {
    return error(StatusCode::kFailedPrecondition, "message {}.{} is not newer than {}.{}: a replay",
                 stamp.start, stamp.number, record.facts.stamp.start, record.facts.stamp.number);
  }
  return &record;
}

StatusOr<Registry::Beat> Registry::heartbeat(const NodeId& id, const wire::Heartbeat& beat, TimePoint now) {
  MESH_ASSIGN_OR_RETURN(NodeRecord* const record, current(id, beat.lease, beat.stamp, now));
  MESH_RETURN_IF_ERROR(check_epoch(beat.highest_epoch));
  if (beat.draining != record->draining || !same_holdings(beat.shards, record->facts.shards)) ++version_;
  record->facts.stamp = beat.stamp;
  record->facts.shards = beat.shards;
  record->facts.highest_epoch = std::max(record->facts.highest_epoch, beat.highest_epoch);
  record->draining = beat.draining;
  record->load = beat.load;
  record->stage_times = beat.stage_times;
  record->links = beat.links;
  record->last_heartbeat = now;
  highest_epoch_ = std::max(highest_epoch_, beat.highest_epoch);

  Beat result;
  std::uint64_t& acknowledged = acknowledged_[id];
  if (beat.last_reply > acknowledged && beat.last_reply < next_reply_) {
    acknowledged = beat.last_reply;
    record->expires = now + options_.lease;
    result.renewed = true;
  }
  result.reply = next_reply_++;
  return result;
}

Status Registry::leave(const NodeId& id, const wire::Leave& leave, TimePoint now) {
  MESH_RETURN_IF_ERROR(current(id, leave.lease, leave.stamp, now).status());
  nodes_.erase(id);
  acknowledged_.erase(id);
  ++version_;
  return absl::OkStatus();
}

std::vector<NodeId> Registry::expire(TimePoint now) {
  std::vector<NodeId> lost;
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    NodeRecord& record = it->second;
    if (now < record.expires) {
      ++it;
      continue;
    }
    ++version_;
    if (record.presence == NodePresence::kLost) {
      acknowledged_.erase(it->first);
      it = nodes_.erase(it);
      continue;
    }
    if (record.presence == NodePresence::kAlive) {
      silent_since_[record.id] = now;
      lost.push_back(record.id);
    }
    record.presence = NodePresence::kLost;
    record.expires = now + options_.recopy_wait;
    ++it;
  }
  if (!lost.empty()) note_silence(now);
  return lost;
}

std::optional<TimePoint> Registry::next_expiry() const {
  std::optional<TimePoint> next;
  for (const auto& [id, record] : nodes_) {
    if (!next || record.expires < *next) next = record.expires;
  }
  return next;
}

const NodeRecord* Registry::find(const NodeId& id) const {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second;
}

Coverage Registry::coverage(const ModelIdentity& model, std::uint32_t layer_count) const {
  Coverage coverage(layer_count);
  for (const auto& [id, record] : nodes_) {
    for (const wire::ShardStatus& shard : record.facts.shards) {
      if (shard.model != model) continue;
      const Copy copy{id, shard.layers};
      if (record.presence != NodePresence::kAlive) {
        coverage.add_held(copy);
      } else if (record.draining || shard.state == wire::ShardState::kDraining) {
        continue;
      } else if (shard.state == wire::ShardState::kLoading && is_copy(shard, record.facts.shards)) {
        const LayerRange ready = layers_in_use(shard);
        coverage.add_ready({id, ready});
        if (ready.end < shard.layers.end) coverage.add_loading({id, {ready.end, shard.layers.end}});
      } else if (shard.state == wire::ShardState::kLoading) {
        coverage.add_loading(copy);
      } else {
        coverage.add_ready(copy);
      }
    }
  }
  return coverage;
}

std::size_t Registry::alive() const {
  return static_cast<std::size_t>(std::count_if(nodes_.begin(), nodes_.end(), [](const auto& entry) {
    return entry.second.presence == NodePresence::kAlive;
  }));
}

void Registry::note_silence(TimePoint now) {
  std::erase_if(silent_since_, [&](const auto& entry) { return now - entry.second > options_.lease; });
  const std::size_t silent = silent_since_.size();
  const std::size_t before = alive() + silent;
  if (before < options_.suspect_from || silent * 3 <= before) return;
  suspect_ = true;
  trusted_from_ = before - silent / 2;
}

void Registry::note_return() {
  if (suspect_ && alive() >= trusted_from_) suspect_ = false;
}

}  // namespace mesh::tracker
