#include "common/hub/model_files.h"

#include <fcntl.h>

#include "common/base/checked.h"
#include "common/hub/file_io.h"
#include "common/hub/file_names.h"

namespace mesh::hub {

std::uint64_t size_limit(std::string_view name) {
  constexpr std::uint64_t kMiB = 1 << 20;
  if (name == kTokenizer || name == kWeightsIndex) return 128 * kMiB;
  if (name == "vocab.json" || name == "merges.txt" || name == "tokenizer.model") return 32 * kMiB;
  if (name == kTokenizerConfig || name == "added_tokens.json") return 16 * kMiB;
  return kMiB;
}

StatusOr<std::filesystem::path> ModelFiles::ensured_path(std::string_view name, ByteRange range) {
  while (true) {
    MESH_ASSIGN_OR_RETURN(const std::filesystem::path before, path(name));
    MESH_RETURN_IF_ERROR(ensure({{std::string(name), {range}}}));
    MESH_ASSIGN_OR_RETURN(std::filesystem::path after, path(name));
    if (before == after) return after;
  }
}

StatusOr<std::string> ModelFiles::read(std::string_view name, ByteRange range) {
  MESH_ASSIGN_OR_RETURN(const std::filesystem::path where, ensured_path(name, range));
  MESH_ASSIGN_OR_RETURN(const File file, open_for_reading(where));
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_RANDOM);  // no read-ahead beyond the range
  return read_at(file, range.offset, range.length, where);
}

StatusOr<std::string> ModelFiles::read_small(std::string_view name) {
  const auto found = files().find(name);
  if (found == files().end()) return error(StatusCode::kNotFound, "{} has no file {}", describe(), name);
  const std::uint64_t limit = size_limit(name);
  if (found->second > limit) {
    return error(StatusCode::kInvalidArgument, "{} of {} has {} bytes, the limit is {}", name, describe(),
                 found->second, limit);
  }
  return read(name, {0, found->second});
}

Status check_ranges(const ModelFiles& files, const FileRanges& wanted) {
  for (const auto& [name, ranges] : wanted) {
    const auto found = files.files().find(name);
    if (found == files.files().end()) {
      return error(StatusCode::kNotFound, "{} has no file {}", files.describe(), name);
    }
    for (const ByteRange& range : ranges) {
      const auto end = checked_add(range.offset, range.length);
      if (!end || *end > found->second) {
        return error(StatusCode::kOutOfRange, "bytes [{}, +{}) of {}, which has {}", range.offset,
                     range.length, name, found->second);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace mesh::hub
