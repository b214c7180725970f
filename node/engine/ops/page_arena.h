#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "common/base/status.h"
#include "node/engine/ops/aligned_bytes.h"

namespace mesh::ops {

/// Memory for pieces that live long and are read together, as a model's matrices: they lie one behind another
/// in mappings of huge pages, which a piece of less than two such pages would not get by itself. A piece that
/// goes gives its pages back at once; its addresses when the last piece of its mapping goes. For any thread.
class PageArena {
 public:
  /// Zeroed, at a multiple of 4 KiB; kResourceExhausted when the memory is not there.
  StatusOr<AlignedBytes> allocate(std::size_t bytes);

 private:
  std::mutex mutex_;
  std::shared_ptr<void> mapping_;
  std::byte* next_ = nullptr;
  std::size_t left_ = 0;
};

}  // namespace mesh::ops
