#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "common/base/status.h"

namespace mesh::ops {

/// Zeroed memory that begins at a multiple of 64 bytes and is given back to the system when it goes. Pieces
/// of 4 MiB and more ask for huge pages.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  /// kResourceExhausted when the memory is not there.
  static StatusOr<AlignedBytes> allocate(std::size_t bytes);

  AlignedBytes(AlignedBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        mapping_(std::move(other.mapping_)) {}
  AlignedBytes& operator=(AlignedBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapping_, other.mapping_);
    return *this;
  }
  ~AlignedBytes();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  friend class PageArena;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::shared_ptr<void> mapping_;  // of an arena, which it is part of
};

}  // namespace mesh::ops
