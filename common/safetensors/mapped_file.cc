#include "common/safetensors/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "common/base/check.h"
#include "common/base/checked.h"

namespace mesh::safetensors {
namespace {

Status io_error(std::string_view what, const std::filesystem::path& path) {
  const int code = errno;
  return error(code == ENOENT ? StatusCode::kNotFound : StatusCode::kUnavailable, "{} {}: {}", what,
               path.string(), std::strerror(code));
}

StatusOr<std::string> read_prefix(int fd, std::uint64_t length, const std::filesystem::path& path) {
  std::string bytes(length, '\0');
  std::uint64_t done = 0;
  while (done < length) {
    const ssize_t got = ::pread(fd, bytes.data() + done, length - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("cannot read", path);
    if (got == 0) break;
    done += static_cast<std::uint64_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

std::uint64_t page_size() {
  static const std::uint64_t size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}
std::uint64_t page_floor(std::uint64_t offset) {
  return offset / page_size() * page_size();
}
std::uint64_t page_ceil(std::uint64_t offset) {
  return page_floor(offset + page_size() - 1);
}

// A fault maps pages around its own that are in the page cache already, at most a huge page.
constexpr std::uint64_t kMappedAround = 2 << 20;

// A span of this size is read ahead again when it is asked for again: its pages may have left memory
// meanwhile.
constexpr std::uint64_t kReadAgainBytes = 1 << 20;

}  // namespace

StatusOr<std::shared_ptr<MappedFile>> MappedFile::open(const std::filesystem::path& path) {
  // Opening a pipe or a device could block or have effects, so only regular files are opened.
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return io_error("cannot open", path);
  if (!S_ISREG(info.st_mode))
    return error(StatusCode::kInvalidArgument, "{} is not a regular file", path.string());
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return io_error("cannot open", path);
  // The object owns the descriptor from here on.
  std::shared_ptr<MappedFile> file(new MappedFile(path, fd));
  if (::fstat(fd, &info) != 0) return io_error("cannot read", path);
  file->size_ = static_cast<std::uint64_t>(info.st_size);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);  // no read-ahead beyond the header
  if (Status status = file->read_header(); !status.ok()) return with_context(status, path.string());
  void* const base =
      ::mmap(nullptr, page_ceil(file->size_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return io_error("cannot reserve address space for", path);
  file->base_ = static_cast<char*>(base);
  return file;
}

Status MappedFile::read_header() {
  MESH_ASSIGN_OR_RETURN(const std::string first, read_prefix(fd_, kLengthBytes, path_));
  MESH_ASSIGN_OR_RETURN(const std::uint64_t length, header_bytes(first, size_));
  MESH_ASSIGN_OR_RETURN(const std::string bytes, read_prefix(fd_, length, path_));
  MESH_ASSIGN_OR_RETURN(header_, parse_header(bytes, size_));
  return absl::OkStatus();
}

MappedFile::~MappedFile() {
  if (base_ != nullptr) ::munmap(base_, page_ceil(size_));
  ::close(fd_);
}

StatusOr<const TensorInfo*> MappedFile::info(std::string_view name) const {
  const auto found = header_.tensors.find(name);
  if (found == header_.tensors.end()) {
    return error(StatusCode::kNotFound, "{} has no tensor {}", path_.string(), name);
  }
  return &found->second;
}

StatusOr<std::string_view> MappedFile::map(const TensorInfo& tensor) {
  return map(tensor, 0, tensor.bytes);
}

StatusOr<std::string_view> MappedFile::map(const TensorInfo& tensor, std::uint64_t begin,
                                           std::uint64_t length) {
  const auto end = checked_add(begin, length);
  if (!end || *end > tensor.bytes) {
    return error(StatusCode::kOutOfRange, "{}: bytes [{}, +{}) of a tensor of {}", path_.string(), begin,
                 length, tensor.bytes);
  }
  const auto tensor_end = checked_add(tensor.offset, tensor.bytes);
  if (!tensor_end || *tensor_end > size_) {
    return error(StatusCode::kOutOfRange, "{}: the tensor does not lie in the file", path_.string());
  }
  if (length == 0) return std::string_view{};
  MESH_RETURN_IF_ERROR(map_pages(page_floor(tensor.offset + begin), page_ceil(tensor.offset + *end)));
  return std::string_view(base_ + tensor.offset + begin, length);
}

Status MappedFile::map_pages(std::uint64_t begin, std::uint64_t end) {
  const std::lock_guard lock(mutex_);
  auto at = mapped_.upper_bound(begin);
  if (at != mapped_.begin() && std::prev(at)->second >= begin) --at;
  const bool covered = at != mapped_.end() && at->first <= begin && at->second >= end;
  if (covered && end - begin < kReadAgainBytes) return absl::OkStatus();
  MESH_RETURN_IF_ERROR(check_size());

  // Only the gaps are mapped: others may be reading the pages that are mapped already.
  std::uint64_t merged_begin = begin;
  std::uint64_t merged_end = begin;
  const auto first = at;
  for (; at != mapped_.end() && at->first <= end; ++at) {
    if (at->first > merged_end) MESH_RETURN_IF_ERROR(map_gap(merged_end, at->first));
    merged_begin = std::min(merged_begin, at->first);
    merged_end = at->second;
  }
  if (merged_end < end) {
    MESH_RETURN_IF_ERROR(map_gap(merged_end, end));
    merged_end = end;
  }
  mapped_.erase(first, at);
  mapped_.emplace(merged_begin, merged_end);
  // Read all of it now, in large requests.
  ::madvise(base_ + begin, end - begin, MADV_WILLNEED);
  return absl::OkStatus();
}

Status MappedFile::check_size() const {
  struct stat info{};
  if (::fstat(fd_, &info) != 0) return io_error("cannot read", path_);
  if (static_cast<std::uint64_t>(info.st_size) >= size_) return absl::OkStatus();
  return error(StatusCode::kFailedPrecondition, "{} shrank from {} to {} bytes since it was opened",
               path_.string(), size_, info.st_size);
}

Status MappedFile::map_gap(std::uint64_t begin, std::uint64_t end) {
  void* const at =
      ::mmap(base_ + begin, end - begin, PROT_READ, MAP_SHARED | MAP_FIXED, fd_, static_cast<off_t>(begin));
  if (at == MAP_FAILED) return io_error("cannot map", path_);
  ::madvise(at, end - begin, MADV_RANDOM);  // no read-ahead beyond these pages
  return absl::OkStatus();
}

void MappedFile::release(const TensorInfo& tensor) {
  const auto end = checked_add(tensor.offset, tensor.bytes);
  MESH_CHECK(end && *end <= size_);
  if (tensor.bytes > 0) release(std::string_view(base_ + tensor.offset, tensor.bytes));
}

void MappedFile::release(std::string_view span) {
  if (span.empty()) return;
  MESH_CHECK(contains(span));
  const auto offset = static_cast<std::uint64_t>(span.data() - base_);
  const std::uint64_t begin = page_floor(offset - std::min(offset, kMappedAround));
  const std::uint64_t end = std::min(page_ceil(offset + span.size()) + kMappedAround, page_ceil(size_));
  ::madvise(base_ + begin, end - begin, MADV_DONTNEED);
}

bool MappedFile::contains(std::string_view span) const {
  return span.data() >= base_ && span.data() + span.size() <= base_ + size_;
}

StatusOr<std::uint64_t> MappedFile::resident_bytes() const {
  std::ifstream smaps("/proc/self/smaps");
  if (!smaps) return error(StatusCode::kUnavailable, "cannot read /proc/self/smaps");
  const auto first = reinterpret_cast<std::uintptr_t>(base_);
  const auto last = first + page_ceil(size_);
  std::uint64_t total = 0;
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    std::uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      inside = begin >= first && end <= last;
    } else if (inside && std::sscanf(line.c_str(), "Rss: %" SCNu64 " kB", &kib) == 1) {
      total += kib * 1024;
    }
  }
  return total;
}

}  // namespace mesh::safetensors
