#include "node/engine/ops/aligned_bytes.h"

#include <sys/mman.h>

#include <cstdint>

namespace mesh::ops {
namespace {
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugeFrom = std::size_t{4} << 20;
std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}
}  // namespace

AlignedBytes::~AlignedBytes() {
  if (data_ == nullptr) return;
  if (mapping_ == nullptr) {
    munmap(data_, whole_pages(size_));
  } else {
    madvise(data_, whole_pages(size_), MADV_DONTNEED);
  }
}

StatusOr<AlignedBytes> AlignedBytes::allocate(std::size_t bytes) {
  AlignedBytes result;
  if (bytes == 0) return result;
  if (bytes > SIZE_MAX - kPage) return error(StatusCode::kResourceExhausted, "no memory for {} bytes", bytes);
  const std::size_t mapped = whole_pages(bytes);
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return error(StatusCode::kResourceExhausted, "no memory for {} bytes", bytes);
  if (mapped >= kHugeFrom) madvise(data, mapped, MADV_HUGEPAGE);
  result.data_ = static_cast<std::byte*>(data);
  result.size_ = bytes;
  return result;
}

}  // namespace mesh::ops
