#include "common/hub/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace mesh::hub {

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

Status errno_status(std::string_view what, const std::filesystem::path& path) {
  const int code = errno;
  const auto kind = code == ENOENT || code == ENOTDIR  ? StatusCode::kNotFound
                    : code == ENOSPC || code == EDQUOT ? StatusCode::kResourceExhausted
                    : code == EACCES || code == EPERM  ? StatusCode::kPermissionDenied
                                                       : StatusCode::kUnavailable;
  return error(kind, "{} {}: {}", what, path.string(), std::strerror(code));
}

StatusOr<File> open_for_reading(const std::filesystem::path& path) {
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return errno_status("cannot open", path);
  struct stat info{};
  if (::fstat(file.fd(), &info) != 0) return errno_status("cannot read", path);
  if (!S_ISREG(info.st_mode))
    return error(StatusCode::kInvalidArgument, "{} is not a regular file", path.string());
  return file;
}

StatusOr<std::uint64_t> size_of(const File& file, const std::filesystem::path& path) {
  struct stat info{};
  if (::fstat(file.fd(), &info) != 0) return errno_status("cannot read", path);
  return static_cast<std::uint64_t>(info.st_size);
}

StatusOr<std::string> read_at(const File& file, std::uint64_t offset, std::uint64_t length,
                              const std::filesystem::path& path) {
  std::string bytes(length, '\0');
  std::uint64_t done = 0;
  while (done < length) {
    const ssize_t got =
        ::pread(file.fd(), bytes.data() + done, length - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status("cannot read", path);
    if (got == 0) {
      return error(StatusCode::kDataLoss, "{} is shorter than {} bytes; it changed while in use",
                   path.string(), offset + length);
    }
    done += static_cast<std::uint64_t>(got);
  }
  return bytes;
}

Status write_at(const File& file, std::uint64_t offset, std::string_view bytes,
                const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno_status("cannot write", path);
    offset += static_cast<std::uint64_t>(put);
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return absl::OkStatus();
}

StatusOr<std::string> read_whole(const std::filesystem::path& path, std::uint64_t limit) {
  MESH_ASSIGN_OR_RETURN(const File file, open_for_reading(path));
  MESH_ASSIGN_OR_RETURN(const std::uint64_t size, size_of(file, path));
  if (size > limit) {
    return error(StatusCode::kInvalidArgument, "{} has {} bytes, the limit is {}", path.string(), size,
                 limit);
  }
  return read_at(file, 0, size, path);
}

Status write_whole(const std::filesystem::path& path, std::string_view text) {
  static std::atomic<std::uint64_t> counter = 0;  // two threads may write the same file
  const std::filesystem::path temporary = fmt::format("{}.{}.{}", path.string(), ::getpid(), counter++);
  const File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) return errno_status("cannot write", temporary);
  Status status = write_at(file, 0, text, temporary);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0)
    status = errno_status("cannot replace", path);
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

}  // namespace mesh::hub
