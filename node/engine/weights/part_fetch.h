#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "node/engine/weights/load_crew.h"
#include "node/engine/weights/part_tasks.h"
#include "node/engine/weights/tensor_catalogue.h"

namespace mesh::engine {

/// Brings the bytes of a load's parts to this machine, one part after another, while those that are here are
/// packed. Everything given to it outlives it.
class PartFetch {
 public:
  PartFetch(hub::Checkpoint& checkpoint, const TensorCatalogue& catalogue,
            const std::vector<MissingPart>& parts, LoadMeter& meter)
      : checkpoint_(checkpoint), catalogue_(catalogue), parts_(parts), meter_(meter) {}
  PartFetch(const PartFetch&) = delete;

  /// Fetches all parts. The meter hears of what was not on this machine. kCancelled when the load ends.
  Status run();
  /// Until a part is here; other threads. kCancelled when it never will be.
  Status wait(std::size_t part);

 private:
  Status fetch(const MissingPart& part);

  hub::Checkpoint& checkpoint_;
  const TensorCatalogue& catalogue_;
  const std::vector<MissingPart>& parts_;
  LoadMeter& meter_;
  std::uint64_t before_ = 0;  // bytes of the parts that are here; of the fetching thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t here_ = 0;  // parts
  bool ended_ = false;    // nothing more comes
};

}  // namespace mesh::engine
