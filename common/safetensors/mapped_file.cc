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
#include <string>
#include <vector>

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
  if (direct_ && *direct_ >= 0) ::close(*direct_);
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

StatusOr<std::uint64_t> MappedFile::offset_of(const TensorInfo& tensor, std::uint64_t begin,
                                              std::uint64_t length) const {
  const auto end = checked_add(begin, length);
  if (!end || *end > tensor.bytes) {
    return error(StatusCode::kOutOfRange, "{}: bytes [{}, +{}) of a tensor of {}", path_.string(), begin,
                 length, tensor.bytes);
  }
  const auto tensor_end = checked_add(tensor.offset, tensor.bytes);
  if (!tensor_end || *tensor_end > size_) {
    return error(StatusCode::kOutOfRange, "{}: the tensor does not lie in the file", path_.string());
  }
  return tensor.offset + begin;
}

StatusOr<std::string_view> MappedFile::map(const TensorInfo& tensor, std::uint64_t begin,
                                           std::uint64_t length) {
  MESH_ASSIGN_OR_RETURN(const std::uint64_t offset, offset_of(tensor, begin, length));
  if (length == 0) return std::string_view{};
  const std::uint64_t first = page_floor(offset), end = page_ceil(offset + length);
  MESH_ASSIGN_OR_RETURN(const bool fresh, map_pages(first, end));
  // Read all of it now, in large requests.
  if (fresh || end - first >= kReadAgainBytes) ::madvise(base_ + first, end - first, MADV_WILLNEED);
  return std::string_view(base_ + offset, length);
}

StatusOr<std::string_view> MappedFile::read(const TensorInfo& tensor, std::uint64_t begin,
                                            std::uint64_t length, ReadBuffer& buffer) {
  MESH_ASSIGN_OR_RETURN(const std::uint64_t offset, offset_of(tensor, begin, length));
  if (length == 0) return std::string_view{};
  MESH_RETURN_IF_ERROR(map_pages(page_floor(offset), page_ceil(offset + length)).status());
  if (!in_page_cache(page_floor(offset), page_ceil(offset + length))) {
    const std::string_view bytes = read_directly(offset, length, buffer);
    if (!bytes.empty()) return bytes;
  }
  return map(tensor, begin, length);
}

bool MappedFile::in_page_cache(std::uint64_t begin, std::uint64_t end) const {
  std::vector<unsigned char> pages((end - begin) / page_size());
  // Of a file that another user owns the kernel says that all of it is there.
  if (::mincore(base_ + begin, end - begin, pages.data()) != 0) return false;
  return std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

int MappedFile::direct() {
  const std::lock_guard lock(mutex_);
  if (!direct_) {
    // The very file, whatever its path names by now.
    const std::string self = "/proc/self/fd/" + std::to_string(fd_);
    direct_ = ::open(self.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  }
  return *direct_;
}

std::string_view MappedFile::read_directly(std::uint64_t begin, std::uint64_t length, ReadBuffer& buffer) {
  constexpr std::uint64_t kBlock = ReadBuffer::kAlignment;
  const int file = direct();
  if (file < 0) return {};
  const std::uint64_t first = begin / kBlock * kBlock, before = begin - first;
  const std::uint64_t wanted = (before + length + kBlock - 1) / kBlock * kBlock;
  char* const room = buffer.room(wanted);
  if (room == nullptr) return {};
  std::uint64_t done = 0;
  while (done < before + length) {
    const ssize_t got = ::pread(file, room + done, wanted - done, static_cast<off_t>(first + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return {};  // no way past the page cache here, or a file that was cut: map() says which
    done += static_cast<std::uint64_t>(got);
  }
  return {room + before, length};
}

StatusOr<bool> MappedFile::map_pages(std::uint64_t begin, std::uint64_t end) {
  const std::lock_guard lock(mutex_);
  auto at = mapped_.upper_bound(begin);
  if (at != mapped_.begin() && std::prev(at)->second >= begin) --at;
  const bool covered = at != mapped_.end() && at->first <= begin && at->second >= end;
  if (covered && end - begin < kReadAgainBytes) return false;
  MESH_RETURN_IF_ERROR(check_size());
  if (covered) return false;

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
  return true;
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
