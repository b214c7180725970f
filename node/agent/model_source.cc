#include "node/agent/model_source.h"

#include <optional>
#include <utility>

#include "common/hub/remote_files.h"

namespace mesh {
namespace {

std::string model_path(const ModelIdentity& identity) {
  return "/mesh/v1/models/" + identity.hex();
}

/// Byte ranges of one model at the tracker. Each thread of a fetch borrows a connection.
class TrackerRanges final : public hub::RangeSource {
 public:
  TrackerRanges(TrackerLink::Options options, std::shared_ptr<TrackerLink::Pin> pin,
                const ModelIdentity& identity)
      : options_(std::move(options)), pin_(std::move(pin)), prefix_(model_path(identity) + "/files/") {}

  Status fetch(std::string_view file, std::uint64_t offset, std::uint64_t length,
               const std::function<Status(std::string_view)>& sink) override {
    std::unique_ptr<TrackerLink> link = borrow();
    Status refused;
    const auto pass = [&](std::string_view chunk) {
      refused = sink(chunk);
      return refused.ok();
    };
    // `file` is one of a manifest, so it has the characters of a file name only.
    const Status fetched = link->download(prefix_ + std::string(file), {offset, offset + length}, pass);
    if (!refused.ok()) return refused;
    if (fetched.ok()) give_back(std::move(link));
    return fetched;
  }

 private:
  std::unique_ptr<TrackerLink> borrow() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<TrackerLink>(options_, pin_);
    std::unique_ptr<TrackerLink> link = std::move(idle_.back());
    idle_.pop_back();
    return link;
  }
  void give_back(std::unique_ptr<TrackerLink> link) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(link));
  }

  const TrackerLink::Options options_;
  const std::shared_ptr<TrackerLink::Pin> pin_;
  const std::string prefix_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<TrackerLink>> idle_;
};

}  // namespace

ModelSource::ModelSource(Options options, std::shared_ptr<TrackerLink::Pin> pin)
    : options_(std::move(options)), pin_(std::move(pin)) {}

StatusOr<std::shared_ptr<hub::Checkpoint>> ModelSource::find(const ModelIdentity& identity) const {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(identity);
  if (found != open_.end()) return found->second;
  return error(StatusCode::kNotFound, "model {} was not opened here", identity.hex());
}

void ModelSource::add(const ModelIdentity& identity, std::shared_ptr<hub::Checkpoint> checkpoint) {
  const std::lock_guard lock(mutex_);
  open_[identity] = std::move(checkpoint);
}

StatusOr<std::shared_ptr<hub::Checkpoint>> ModelSource::open(const wire::CatalogueEntry& entry) {
  if (auto known = find(entry.model); known.ok()) return known;
  TrackerLink link(options_.tracker, pin_);
  MESH_ASSIGN_OR_RETURN(const std::string text,
                        link.get(model_path(entry.model) + "/manifest", hub::kMaxManifestBytes));
  MESH_ASSIGN_OR_RETURN(hub::Manifest manifest, hub::parse_manifest(text));
  if (hub::identity_of(manifest, entry.quantization, entry.compute_type) != entry.model) {
    return error(StatusCode::kDataLoss, "the tracker's manifest of {} does not have the identity {}",
                 entry.name, entry.model.hex());
  }
  auto ranges = std::make_shared<TrackerRanges>(options_.tracker, pin_, entry.model);
  hub::RemoteOptions remote;
  remote.cache_folder = options_.cache_folder;
  remote.extra_roots = options_.extra_roots;
  remote.description = entry.name + " from the tracker";
  MESH_ASSIGN_OR_RETURN(auto files,
                        hub::open_remote(std::move(manifest), std::move(ranges), std::move(remote)));
  MESH_ASSIGN_OR_RETURN(auto checkpoint, hub::Checkpoint::open(std::move(files)));
  add(entry.model, checkpoint);
  return checkpoint;
}

}  // namespace mesh
