#include "common/hub/checkpoint.h"

#include "common/base/check.h"
#include "common/base/checked.h"
#include "common/base/printable.h"
#include "common/hub/file_names.h"
#include "common/hub/shard_index.h"

namespace mesh::hub {

using safetensors::TensorInfo;

StatusOr<std::shared_ptr<Checkpoint>> Checkpoint::open(std::shared_ptr<ModelFiles> files) {
  std::shared_ptr<Checkpoint> checkpoint(new Checkpoint(std::move(files)));
  MESH_RETURN_IF_ERROR(checkpoint->read_names());
  return checkpoint;
}

Status Checkpoint::read_names() {
  if (files_->has(kWeightsIndex)) {
    MESH_ASSIGN_OR_RETURN(const std::string text, files_->read_small(kWeightsIndex));
    MESH_ASSIGN_OR_RETURN(tensor_files_, parse_shard_index(text));
    for (const auto& [tensor, file] : tensor_files_) {
      if (!files_->has(file)) {
        return error(StatusCode::kNotFound, "{}: {} is named by {} but missing", files_->describe(), file,
                     kWeightsIndex);
      }
    }
    return absl::OkStatus();
  }
  std::string weights;
  for (const auto& [name, size] : files_->files()) {
    if (!name.ends_with(kWeightsSuffix)) continue;
    if (!weights.empty()) {
      return error(StatusCode::kInvalidArgument, "{}: {} and {} but no {}", files_->describe(), weights, name,
                   kWeightsIndex);
    }
    weights = name;
  }
  if (weights.empty()) return error(StatusCode::kNotFound, "{} has no *.safetensors", files_->describe());
  MESH_ASSIGN_OR_RETURN(const auto file, with_header(weights));
  for (const auto& [tensor, info] : file->header().tensors) tensor_files_.emplace(tensor, weights);
  return absl::OkStatus();
}

StatusOr<std::string> Checkpoint::file_of(std::string_view tensor) const {
  const auto found = tensor_files_.find(tensor);
  if (found == tensor_files_.end()) {
    return error(StatusCode::kNotFound, "{} has no tensor {}", files_->describe(), printable(tensor));
  }
  return found->second;
}

StatusOr<std::shared_ptr<safetensors::MappedFile>> Checkpoint::mapped(const std::string& file,
                                                                      const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  if (const auto found = mapped_.find(path); found != mapped_.end()) return found->second;
  MESH_ASSIGN_OR_RETURN(std::shared_ptr<MappedFile> opened, MappedFile::open(path));
  const auto& tensors = opened->header().tensors;
  for (const auto& [tensor, info] : tensors) {
    const auto named = tensor_files_.find(tensor);
    if (!tensor_files_.empty() && (named == tensor_files_.end() || named->second != file)) {
      return error(StatusCode::kInvalidArgument, "{}: {} holds tensor {}, which {} does not place there",
                   files_->describe(), file, printable(tensor), kWeightsIndex);
    }
  }
  for (const auto& [tensor, named] : tensor_files_) {
    if (named == file && !tensors.contains(tensor)) {
      return error(StatusCode::kInvalidArgument, "{}: {} lacks tensor {}, which {} places there",
                   files_->describe(), file, printable(tensor), kWeightsIndex);
    }
  }
  mapped_.emplace(path, opened);
  return opened;
}

StatusOr<std::shared_ptr<safetensors::MappedFile>> Checkpoint::with_header(const std::string& file) {
  MESH_ASSIGN_OR_RETURN(const std::filesystem::path known, files_->path(file));
  {
    const std::lock_guard lock(mutex_);
    if (const auto opened = mapped_.find(known); opened != mapped_.end()) return opened->second;
  }
  const auto found = files_->files().find(file);
  MESH_CHECK(found != files_->files().end());
  const std::uint64_t first = std::min(found->second, safetensors::kLengthBytes);
  MESH_ASSIGN_OR_RETURN(const std::string bytes, files_->read(file, {0, first}));
  const auto length = safetensors::header_bytes(bytes, found->second);
  if (!length.ok()) return with_context(length.status(), file);
  MESH_ASSIGN_OR_RETURN(const std::filesystem::path path, files_->ensured_path(file, {0, *length}));
  return mapped(file, path);
}

StatusOr<TensorInfo> Checkpoint::info(std::string_view tensor) {
  MESH_ASSIGN_OR_RETURN(const std::string file, file_of(tensor));
  MESH_ASSIGN_OR_RETURN(const auto opened, with_header(file));
  MESH_ASSIGN_OR_RETURN(const TensorInfo* const info, opened->info(tensor));
  return *info;
}

Status Checkpoint::ensure(const std::vector<std::string>& tensors, const ProgressFn& progress) {
  FileRanges wanted;
  for (const std::string& tensor : tensors) {
    MESH_ASSIGN_OR_RETURN(const TensorInfo found, info(tensor));
    wanted[tensor_files_.find(tensor)->second].push_back({found.offset, found.bytes});
  }
  return files_->ensure(wanted, progress);
}

StatusOr<std::string_view> Checkpoint::tensor(std::string_view tensor) {
  MESH_ASSIGN_OR_RETURN(const TensorInfo found, info(tensor));
  return slice(tensor, 0, found.bytes);
}

StatusOr<Checkpoint::Place> Checkpoint::place_of(std::string_view tensor, std::uint64_t begin,
                                                 std::uint64_t length) {
  MESH_ASSIGN_OR_RETURN(const std::string file, file_of(tensor));
  MESH_ASSIGN_OR_RETURN(TensorInfo found, info(tensor));
  const auto end = checked_add(begin, length);
  if (!end || *end > found.bytes) {
    return error(StatusCode::kOutOfRange, "bytes [{}, +{}) of {}, which has {}", begin, length,
                 printable(tensor), found.bytes);
  }
  MESH_ASSIGN_OR_RETURN(const auto path, files_->ensured_path(file, {found.offset + begin, length}));
  MESH_ASSIGN_OR_RETURN(auto opened, mapped(file, path));
  return Place{std::move(opened), std::move(found)};
}

StatusOr<std::string_view> Checkpoint::slice(std::string_view tensor, std::uint64_t begin,
                                             std::uint64_t length) {
  MESH_ASSIGN_OR_RETURN(const Place place, place_of(tensor, begin, length));
  return place.file->map(place.tensor, begin, length);
}

StatusOr<std::string_view> Checkpoint::read(std::string_view tensor, std::uint64_t begin,
                                            std::uint64_t length, safetensors::ReadBuffer& buffer) {
  MESH_ASSIGN_OR_RETURN(const Place place, place_of(tensor, begin, length));
  return place.file->read(place.tensor, begin, length, buffer);
}

std::optional<std::uint64_t> Checkpoint::made_of(std::string_view) const {
  return std::nullopt;
}

void Checkpoint::release(std::string_view span) {
  const std::lock_guard lock(mutex_);
  for (const auto& [path, file] : mapped_) {
    if (file->contains(span)) return file->release(span);
  }
}

StatusOr<std::uint64_t> Checkpoint::resident_bytes() {
  const std::lock_guard lock(mutex_);
  std::uint64_t total = 0;
  for (const auto& [path, file] : mapped_) {
    MESH_ASSIGN_OR_RETURN(const std::uint64_t bytes, file->resident_bytes());
    total += bytes;
  }
  return total;
}

}  // namespace mesh::hub
