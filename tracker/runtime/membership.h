#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/identity/join_key.h"
#include "common/identity/key_pair.h"
#include "common/json/json.h"
#include "common/log/log.h"
#include "common/net/server.h"
#include "tracker/plan/desk.h"
#include "tracker/registry/registry.h"
#include "tracker/runtime/route_book.h"
#include "tracker/store/membership_store.h"

namespace mesh::tracker {

/// The mesh as the tracker runs it: registry, planner's desk and store under one lock, with a thread that
/// ends leases. Thread-safe; no call waits for another program. Joins, heartbeats, leavings and what
/// operators see wait for the lock, under which is planned and written to disk; Routes, joined() and ready()
/// do not.
class Membership final : public Routes {
 public:
  struct Options {
    std::vector<wire::CatalogueEntry> catalogue;
    std::vector<ModelProfile> profiles;  ///< of the same models, in the order of their importance
    HeadLayers head_layers;
    NodeId self;           ///< the embedded node
    std::string head_url;  ///< where nodes reach this tracker's mesh listener
    std::uint64_t head_memory_bytes = 0;
    Duration heartbeat = std::chrono::seconds(2);
    Registry::Options registry;
    DirectiveDesk::Options desk;
    /// Whether a join from this address needs the proof of the join key.
    std::function<bool(std::string_view remote_ip)> needs_proof;
    std::optional<JoinKey> join_key;
    /// A node ceased to be alive, or left. Called without the lock.
    std::function<void(const NodeId&)> on_lost;
  };
  Membership(Options options, std::unique_ptr<MembershipStore> store, std::shared_ptr<const KeyPair> identity,
             log::Logger log);
  ~Membership() override { stop(); }

  /// Reads what the store remembers and starts the thread.
  Status start();
  void stop();

  /// POST join, heartbeat, leave: signed messages in, signed replies out.
  std::vector<net::Route> routes();

  // Routes, for the head.
  StatusOr<std::vector<wire::HopAddress>> find(const head::RouteWanted& wanted) override {
    return book_.find(wanted);
  }
  std::optional<PublicKey> key_of(const NodeId& node) override { return book_.key_of(node); }
  wire::Freshness freshness_of(const NodeId& node) override { return book_.freshness_of(node); }
  Status available(const ModelIdentity& identity) override { return book_.available(identity); }
  std::optional<NoFit> find_room(const ModelIdentity& identity, std::uint64_t tokens,
                                 std::uint64_t own_bytes) override {
    return book_.find_room(identity, tokens, own_bytes);
  }

  Status joined(const NodeId& node) const { return book_.joined(node); }
  Status ready() const { return book_.ready(); }
  /// The body of /mesh/v1/coverage.
  json::Value coverage() const;
  struct Figures {
    std::size_t alive = 0, draining = 0, silent = 0;
    Epoch epoch;
  };
  Figures figures() const;
  /// The operator says that the tracker may trust itself again.
  void trust_again();

 private:
  net::Response handle_join(net::Request& request);
  net::Response handle_heartbeat(net::Request& request);
  net::Response handle_leave(net::Request& request);
  StatusOr<std::string> join(const net::Request& request);
  StatusOr<std::string> heartbeat(const net::Request& request);
  StatusOr<std::string> leave(const net::Request& request);
  net::Response answer(std::string_view route, const StatusOr<std::string>& body) const;

  // With the lock held.
  Coverage coverage_of(const ModelIdentity& identity) const;
  const wire::CatalogueEntry* entry_of(const ModelIdentity& identity) const;
  /// Plans if something changed. A plan of many nodes takes long: those are made a tenth of the time at most,
  /// and watch() catches up.
  void reconsider();
  void remember(const NodeId& node);
  void log_events();
  wire::SignedDirective sign(const wire::Directive& directive) const;
  void watch();

  const Options options_;
  const std::shared_ptr<const KeyPair> identity_;
  const log::Logger log_;
  const SteadyClock clock_;
  mutable std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  const std::unique_ptr<MembershipStore> store_;
  Registry registry_;
  RouteBook book_;  ///< not under the lock; published before anything is planned or stored
  DirectiveDesk desk_;
  std::map<NodeId, std::vector<wire::ShardStatus>> stored_;  ///< shards as the store has them
  TimePoint next_plan_{};
  std::set<std::string> noted_;  ///< gaps and notes of the plan that were logged
  std::thread thread_;
};

}  // namespace mesh::tracker
