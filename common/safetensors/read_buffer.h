#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <utility>

namespace mesh::safetensors {

/// Memory for MappedFile::read(): whole pages, given back to the system when it goes. One thread's.
class ReadBuffer {
 public:
  static constexpr std::uint64_t kAlignment =
      4096;  ///< of its address, and of what is read past the page cache

  ReadBuffer() = default;
  ~ReadBuffer() { free(); }
  ReadBuffer(const ReadBuffer&) = delete;
  ReadBuffer& operator=(const ReadBuffer&) = delete;

  /// `bytes` bytes; null when there is no memory for them. What was there before is lost.
  char* room(std::uint64_t bytes) {
    if (bytes <= size_) return memory_;
    free();
    void* const got = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) return nullptr;
    memory_ = static_cast<char*>(got);
    size_ = bytes;
    return memory_;
  }

 private:
  void free() {
    if (memory_ != nullptr) ::munmap(std::exchange(memory_, nullptr), std::exchange(size_, 0));
  }

  char* memory_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace mesh::safetensors
