#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/identity/key_pair.h"
#include "common/wire/messages.h"
#include "tracker/admission/session_room.h"
#include "tracker/head/head_table.h"

namespace mesh::tracker {

/// What the head must know of the mesh. Called on the head's strand; must not wait.
class Routes {
 public:
  virtual ~Routes() = default;
  /// Hops for the asked layers; kUnavailable when some layer has no ready copy.
  virtual StatusOr<std::vector<wire::HopAddress>> find(const head::RouteWanted& wanted) = 0;
  /// The key to which a session's secret is sealed; none when the node is not known.
  virtual std::optional<PublicKey> key_of(const NodeId& node) = 0;
  /// What an opening or renewal to a node must name, so that the node takes it for new. Empty for a node that
  /// is not known: it will refuse.
  virtual wire::Freshness freshness_of(const NodeId& node) = 0;
  /// OK when a session of the model could begin now; else kUnavailable with the layers that are missing.
  virtual Status available(const ModelIdentity& identity) = 0;
  /// Why no route could ever hold a session of `tokens`; `own_bytes`: what the embedded node could use for
  /// caches. Nothing when some could.
  virtual std::optional<NoFit> find_room(const ModelIdentity& identity, std::uint64_t tokens,
                                         std::uint64_t own_bytes) = 0;
};

}  // namespace mesh::tracker
