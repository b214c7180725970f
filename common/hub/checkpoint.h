#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/hub/model_files.h"
#include "common/safetensors/mapped_file.h"

namespace mesh::hub {

/// A model's tensors by name, over one or many SafeTensors files. The header of a shard is read (and fetched)
/// when a tensor of it is first asked for. Spans stay valid as long as the Checkpoint lives, or until they
/// are released. Thread-safe. What is virtual is all that a checkpoint without files has to say by itself.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  /// Reads the shard index, or the header of the only weights file.
  static StatusOr<std::shared_ptr<Checkpoint>> open(std::shared_ptr<ModelFiles> files);

  ModelFiles& files() const { return *files_; }
  /// Every tensor's name → its file.
  const std::map<std::string, std::string, std::less<>>& tensor_files() const { return tensor_files_; }
  bool has(std::string_view tensor) const { return tensor_files_.find(tensor) != tensor_files_.end(); }

  /// dtype, shape, bytes. kNotFound names the tensor and the model.
  virtual StatusOr<safetensors::TensorInfo> info(std::string_view tensor);
  /// Fetches what is missing of all these tensors, with one progress over all of them.
  virtual Status ensure(const std::vector<std::string>& tensors, const ProgressFn& progress = {});
  /// The tensor's bytes, mapped read-only; ensured first if need be.
  StatusOr<std::string_view> tensor(std::string_view tensor);
  /// Bytes [begin, begin + length) of the tensor: rows for a rank, an embedding's row.
  virtual StatusOr<std::string_view> slice(std::string_view tensor, std::uint64_t begin,
                                           std::uint64_t length);
  /// The same for one pass over the bytes, maybe in `buffer` (safetensors::MappedFile::read): valid until it
  /// is released or `buffer` is read into again.
  virtual StatusOr<std::string_view> read(std::string_view tensor, std::uint64_t begin, std::uint64_t length,
                                          safetensors::ReadBuffer& buffer);
  /// Drops the resident pages of a span that tensor(), slice() or read() gave.
  virtual void release(std::string_view span);
  /// Of a checkpoint of made-up weights: what this tensor's values are made of. A device may make others of
  /// the same distribution instead of reading these. Nothing: weights are real.
  virtual std::optional<std::uint64_t> made_of(std::string_view tensor) const;
  /// Bytes of all mappings resident in this process.
  StatusOr<std::uint64_t> resident_bytes();

 protected:
  using TensorFiles = std::map<std::string, std::string, std::less<>>;
  Checkpoint(std::shared_ptr<ModelFiles> files, TensorFiles tensor_files)
      : files_(std::move(files)), tensor_files_(std::move(tensor_files)) {}

 private:
  using MappedFile = safetensors::MappedFile;
  explicit Checkpoint(std::shared_ptr<ModelFiles> files) : files_(std::move(files)) {}
  Status read_names();
  /// The file at `path`, opened and checked against the index once.
  StatusOr<std::shared_ptr<MappedFile>> mapped(const std::string& file, const std::filesystem::path& path);
  /// The file with its header ensured.
  StatusOr<std::shared_ptr<MappedFile>> with_header(const std::string& file);
  StatusOr<std::string> file_of(std::string_view tensor) const;
  /// Where bytes [begin, begin + length) of a tensor are, ensured.
  struct Place {
    std::shared_ptr<MappedFile> file;
    safetensors::TensorInfo tensor;
  };
  StatusOr<Place> place_of(std::string_view tensor, std::uint64_t begin, std::uint64_t length);

  const std::shared_ptr<ModelFiles> files_;
  TensorFiles tensor_files_;
  std::mutex mutex_;
  std::map<std::filesystem::path, std::shared_ptr<MappedFile>> mapped_;  // never shrinks: spans stay valid
};

}  // namespace mesh::hub
