#include "node/engine/ops/page_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace mesh::ops {
namespace {
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMapping = std::size_t{128} << 20;  // addresses; pages come when they are written

std::size_t rounded_up(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}
}  // namespace

StatusOr<AlignedBytes> PageArena::allocate(std::size_t bytes) {
  if (bytes == 0) return AlignedBytes();
  if (bytes > SIZE_MAX - 2 * kHugePage) {
    return error(StatusCode::kResourceExhausted, "no memory for {} bytes", bytes);
  }
  const std::size_t size = rounded_up(bytes, kPage);
  const std::lock_guard lock(mutex_);
  if (size > left_) {
    const std::size_t usable = std::max(kMapping, rounded_up(size, kHugePage));
    const std::size_t mapped = usable + kHugePage;  // to begin at a huge page
    void* const start =
        mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return error(StatusCode::kResourceExhausted, "no memory for {} bytes", bytes);
    mapping_ = std::shared_ptr<void>(start, [mapped](void* address) { munmap(address, mapped); });
    next_ = reinterpret_cast<std::byte*>(rounded_up(reinterpret_cast<std::uintptr_t>(start), kHugePage));
    left_ = usable;
    madvise(next_, usable, MADV_HUGEPAGE);
  }
  AlignedBytes piece;
  piece.data_ = next_;
  piece.size_ = bytes;
  piece.mapping_ = mapping_;
  next_ += size;
  left_ -= size;
  return piece;
}

}  // namespace mesh::ops
