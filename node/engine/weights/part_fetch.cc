#include "node/engine/weights/part_fetch.h"

#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <string>

#include "common/hub/checkpoint.h"

namespace mesh::engine {

Status PartFetch::run() {
  const absl::Cleanup end = [this] {  // by an exception too
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
  };
  for (const MissingPart& part : parts_) {
    MESH_RETURN_IF_ERROR(meter_.stopped() ? meter_.cancelled() : fetch(part));
    {
      const std::lock_guard lock(mutex_);
      ++here_;
    }
    changed_.notify_all();
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
  changed_.wait(lock, [&] { return here_ > part || ended_; });
  return here_ > part ? absl::OkStatus() : meter_.cancelled();
}

}  // namespace mesh::engine
