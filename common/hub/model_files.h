#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/hub/progress.h"

namespace mesh::hub {

/// Bytes [offset, offset + length) of a file.
struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};
/// Ranges of several files, by name. They may overlap.
using FileRanges = std::map<std::string, std::vector<ByteRange>, std::less<>>;

/// The files of one model at one commit: weights, config, tokenizer, template; flat names (file_names.h).
/// Thread-safe.
class ModelFiles {
 public:
  virtual ~ModelFiles() = default;

  /// For messages: the folder, the HF id with its commit, or the model's name at the tracker.
  virtual std::string describe() const = 0;
  /// Name → size in bytes.
  virtual const std::map<std::string, std::uint64_t, std::less<>>& files() const = 0;

  /// Makes the bytes readable under path(): nothing to do for a local model, a fetch for a remote one (what
  /// lies there already is not fetched again). kNotFound, kOutOfRange, kResourceExhausted (disk), kDataLoss
  /// (wrong hash), or the source's error; what was fetched stays, so that the next call goes on from there.
  virtual Status ensure(const FileRanges& wanted, const ProgressFn& progress = {}) = 0;
  /// Where the file lies, with its own offsets. Only ensured bytes may be read. It changes when a local copy
  /// proves wrong: ensured_path() takes care of that.
  virtual StatusOr<std::filesystem::path> path(std::string_view name) = 0;

  /// A path under which `range` is ensured.
  StatusOr<std::filesystem::path> ensured_path(std::string_view name, ByteRange range);
  bool has(std::string_view name) const { return files().find(name) != files().end(); }
  /// ensure() and read bytes. For serving and for headers.
  virtual StatusOr<std::string> read(std::string_view name, ByteRange range);
  /// The whole of a small file; kNotFound, or kInvalidArgument when it is over its limit (size_limit()).
  StatusOr<std::string> read_small(std::string_view name);
};

/// Largest size at which read_small() takes a file: config.json 1 MiB, tokenizer.json 128 MiB, …
std::uint64_t size_limit(std::string_view name);
/// kNotFound or kOutOfRange when the model has no such file or bytes.
Status check_ranges(const ModelFiles& files, const FileRanges& wanted);

}  // namespace mesh::hub
