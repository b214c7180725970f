#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/status.h"

namespace mesh::hub {

/// Owns a file descriptor.
class File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~File();

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// kNotFound, or kUnavailable with errno's text; kResourceExhausted for a full disk.
Status errno_status(std::string_view what, const std::filesystem::path& path);

/// A regular file, for reading. Never blocks on a pipe.
StatusOr<File> open_for_reading(const std::filesystem::path& path);
StatusOr<std::uint64_t> size_of(const File& file, const std::filesystem::path& path);
/// Exactly `length` bytes; kDataLoss when the file is shorter.
StatusOr<std::string> read_at(const File& file, std::uint64_t offset, std::uint64_t length,
                              const std::filesystem::path& path);
Status write_at(const File& file, std::uint64_t offset, std::string_view bytes,
                const std::filesystem::path& path);

/// The whole file, at most `limit` bytes (kInvalidArgument above).
StatusOr<std::string> read_whole(const std::filesystem::path& path, std::uint64_t limit);
/// Replaces the file by renaming, so that a reader sees the old or the new text.
Status write_whole(const std::filesystem::path& path, std::string_view text);

}  // namespace mesh::hub
