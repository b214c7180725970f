#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/hub/manifest.h"
#include "common/hub/model_files.h"

namespace mesh::hub {

/// Where a remote file's bytes come from: the tracker over HTTP, a test's memory. Several threads call it at
/// once.
class RangeSource {
 public:
  virtual ~RangeSource() = default;
  /// Gives bytes [offset, offset + length) of `file` to `sink` in order, in chunks of any size; stops with
  /// the sink's error. Blocks; has its own timeouts.
  virtual Status fetch(std::string_view file, std::uint64_t offset, std::uint64_t length,
                       const std::function<Status(std::string_view chunk)>& sink) = 0;
};

struct RemoteOptions {
  std::filesystem::path cache_folder;
  /// Local model folders and HuggingFace caches that may already hold the files; each piece used is checked
  /// by hash, with a progress of its own before that of the fetch.
  std::vector<std::filesystem::path> extra_roots;
  std::string description;                   // for messages
  std::uint64_t disk_reserve = 64ull << 20;  // bytes that a fetch leaves free on the disk
};

/// Files of a model that another machine holds, mirrored sparsely: `<cache>/<sha256>/data` has the file's
/// size and offsets, `<cache>/<sha256>/data.pieces` has a bit for each piece that is whole on the disk.
/// Threads and processes may share a cache folder; a kill at any moment loses at most the pieces in flight.
StatusOr<std::shared_ptr<ModelFiles>> open_remote(Manifest manifest, std::shared_ptr<RangeSource> source,
                                                  RemoteOptions options);

}  // namespace mesh::hub
