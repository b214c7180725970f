#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "common/hub/checkpoint.h"
#include "common/wire/control.h"
#include "node/agent/tracker_link.h"

namespace mesh {

/// The models that this node may read, by identity: from the tracker by byte ranges, with the node's caches
/// looked in first. Thread-safe.
class ModelSource {
 public:
  struct Options {
    TrackerLink::Options tracker;
    std::filesystem::path cache_folder;
    std::vector<std::filesystem::path> extra_roots;  ///< other caches, read only
  };
  ModelSource(Options options, std::shared_ptr<TrackerLink::Pin> pin);

  /// Fetches the manifest and proves that it has the identity; weights come later, as far as they are read.
  StatusOr<std::shared_ptr<hub::Checkpoint>> open(const wire::CatalogueEntry& entry);
  /// A model that was opened before; kNotFound.
  StatusOr<std::shared_ptr<hub::Checkpoint>> find(const ModelIdentity& identity) const;
  void add(const ModelIdentity& identity, std::shared_ptr<hub::Checkpoint> checkpoint);

 private:
  const Options options_;
  const std::shared_ptr<TrackerLink::Pin> pin_;
  mutable std::mutex mutex_;
  std::map<ModelIdentity, std::shared_ptr<hub::Checkpoint>> open_;
};

}  // namespace mesh
