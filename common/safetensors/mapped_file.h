#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/status.h"
#include "common/safetensors/header.h"
#include "common/safetensors/read_buffer.h"

namespace mesh::safetensors {

/// A SafeTensors file whose tensors are mapped one by one: address space is reserved for the whole file, but
/// only the pages of tensors asked for can be touched, so that neither read-ahead nor fault-around brings in
/// a neighbour. Spans stay valid as long as the object lives. All methods may be called from several threads.
class MappedFile {
 public:
  /// Reads and checks the header; maps no tensor yet. kNotFound, kInvalidArgument.
  static StatusOr<std::shared_ptr<MappedFile>> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const Header& header() const { return header_; }
  /// kNotFound with the file's name.
  StatusOr<const TensorInfo*> info(std::string_view name) const;

  /// Maps the tensor (or bytes [begin, begin + length) of it) read-only and starts reading it from disk.
  /// kFailedPrecondition if the file shrank since open().
  StatusOr<std::string_view> map(const TensorInfo& tensor);
  StatusOr<std::string_view> map(const TensorInfo& tensor, std::uint64_t begin, std::uint64_t length);

  /// Bytes [begin, begin + length) of the tensor for one pass over them: the page cache's pages when it has
  /// all of them; else read past it into `buffer`, or mapped as above where the file system has no way past.
  /// The span is valid until the next read() into `buffer`. The errors of map().
  StatusOr<std::string_view> read(const TensorInfo& tensor, std::uint64_t begin, std::uint64_t length,
                                  ReadBuffer& buffer);

  /// Drops the resident pages that hold the bytes, and those within 2 MiB that reading them may have mapped.
  /// A span stays valid: reading it again reads the file again.
  void release(const TensorInfo& tensor);
  void release(std::string_view span);

  /// Whether the span is one of this file's.
  bool contains(std::string_view span) const;

  /// Bytes of the mapping that are resident in this process, from /proc/self/smaps.
  StatusOr<std::uint64_t> resident_bytes() const;

 private:
  MappedFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status read_header();
  /// The tensor's bytes as a place in the file.
  StatusOr<std::uint64_t> offset_of(const TensorInfo& tensor, std::uint64_t begin,
                                    std::uint64_t length) const;
  /// True when some of the pages were not mapped before.
  StatusOr<bool> map_pages(std::uint64_t begin, std::uint64_t end);
  Status map_gap(std::uint64_t begin, std::uint64_t end);
  Status check_size() const;
  bool in_page_cache(std::uint64_t begin, std::uint64_t end) const;
  /// A descriptor that reads past the page cache; −1 where there is none.
  int direct();
  /// Bytes [begin, begin + length) of the file; empty when they cannot be had so.
  std::string_view read_directly(std::uint64_t begin, std::uint64_t length, ReadBuffer& buffer);

  const std::filesystem::path path_;
  const int fd_;
  std::uint64_t size_ = 0;
  Header header_;
  char* base_ = nullptr;                           // page-aligned reservation of size_ bytes
  std::mutex mutex_;                               // guards mapped_, direct_ and changes of the mapping
  std::map<std::uint64_t, std::uint64_t> mapped_;  // disjoint page ranges: begin → end
  std::optional<int> direct_;                      // opened when it is first needed
};

}  // namespace mesh::safetensors
