#include "node/engine/weights/part_fetch.h"

#include <algorithm>
#include <string>

#include "common/hub/checkpoint.h"

namespace mesh::engine {

Status PartFetch::run() {
  for (const MissingPart& part : parts_) {
    const Status fetched = meter_.stopped() ? meter_.cancelled() : fetch(part);
    {
      const std::lock_guard lock(mutex_);
      fetched.ok() ? void(++here_) : void(failed_ = true);
    }
    changed_.notify_all();
    MESH_RETURN_IF_ERROR(fetched);
  }
  return absl::OkStatus();
}

Status PartFetch::fetch(const MissingPart& part) {
  std::vector<std::string> names;
  std::uint64_t bytes = 0;
  for (const TensorSource* source : part.sources) {
    const StoredTensor& stored = catalogue_.stored(*source);
    names.insert(names.end(), stored.names.begin(), stored.names.end());
    bytes += stored.bytes;
  }
  const Status fetched = checkpoint_.ensure(names, [&](const hub::Progress& so_far) {
    // Whole pieces of the file come, which may be more than the tensors.
    if (so_far.bytes_total != 0) meter_.fetched(before_ + std::min(so_far.bytes_done, bytes));
    return !meter_.stopped();
  });
  before_ += bytes;
  return fetched;
}

Status PartFetch::wait(std::size_t part) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return here_ > part || failed_; });
  return here_ > part ? absl::OkStatus() : meter_.cancelled();
}

}  // namespace mesh::engine
