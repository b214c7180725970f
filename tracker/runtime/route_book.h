#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/wire/control.h"
#include "tracker/plan/desk.h"
#include "tracker/registry/registry.h"
#include "tracker/runtime/routes.h"

namespace mesh::tracker {

/// What the head and the requests' threads read of the mesh: the last word of each node and the ready copies
/// of each model, as the registry's owner published them. All that is in it is immutable and is replaced, so
/// a reader waits for no plan and no disk. Thread-safe; one thread at a time publishes.
class RouteBook final : public Routes {
 public:
  struct Options {
    std::vector<wire::CatalogueEntry> catalogue;
    std::vector<ModelProfile> profiles;  ///< of the same models
    HeadLayers head_layers;
    NodeId self;           ///< the embedded node
    std::string head_url;  ///< where nodes reach this tracker's mesh listener
  };
  explicit RouteBook(Options options);

  /// Takes over the last word of `node`, and if somebody came, went or holds something else since the last
  /// call, all of the registry.
  void publish(const Registry& registry, const NodeId& node);
  void publish(const Registry& registry);

  StatusOr<std::vector<wire::HopAddress>> find(const head::RouteWanted& wanted) override;
  std::optional<PublicKey> key_of(const NodeId& node) override;
  wire::Freshness freshness_of(const NodeId& node) override;
  Status available(const ModelIdentity& identity) override;
  std::optional<NoFit> find_room(const ModelIdentity& identity, std::uint64_t tokens,
                                 std::uint64_t own_bytes) override;

  /// kPermissionDenied unless the node has joined and its lease holds.
  Status joined(const NodeId& node) const;
  /// OK when every wanted model has a full chain of ready layers.
  Status ready() const;

 private:
  using Record = std::shared_ptr<const NodeRecord>;
  struct Model {
    std::vector<Copy> ready;  ///< at nodes; the head's own layers are not among them
    Status missing;           ///< OK: every layer is ready somewhere
  };
  struct Ready {
    std::vector<Copy> copies;
    std::map<NodeId, Record> records;  ///< of the nodes of `copies`
  };

  Record record_of(const NodeId& node) const;
  std::shared_ptr<const Model> model_of(const ModelIdentity& identity) const;
  Ready ready_of(const ModelIdentity& identity) const;
  Model model_in(const Registry& registry, const wire::CatalogueEntry& entry) const;
  const ModelProfile* profile_of(const ModelIdentity& identity) const;
  std::uint32_t head_layers_of(const ModelIdentity& identity) const;
  std::uint64_t cache_room(const NodeRecord& record) const;

  const Options options_;
  std::optional<std::uint64_t> version_;  ///< of the registry when all of it was published
  mutable std::mutex mutex_;              ///< held for look-ups and swaps alone
  std::map<NodeId, Record> records_;
  std::map<ModelIdentity, std::shared_ptr<const Model>> models_;
};

}  // namespace mesh::tracker
