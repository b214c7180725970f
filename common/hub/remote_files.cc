#include "common/hub/remote_files.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "common/hub/file_io.h"
#include "common/hub/local_copies.h"
#include "common/hub/piece_fetch.h"
#include "common/identity/sha256.h"

namespace mesh::hub {
namespace {

namespace fs = std::filesystem;

/// The pieces that the ranges touch, sorted, as disjoint runs.
std::vector<PieceRun> touched_pieces(std::vector<ByteRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.offset < b.offset; });
  std::vector<PieceRun> runs;
  for (const ByteRange& range : ranges) {
    if (range.length == 0) continue;
    const PieceRun run{range.offset / kPieceBytes, (range.offset + range.length - 1) / kPieceBytes + 1};
    if (!runs.empty() && run.first <= runs.back().last) {
      runs.back().last = std::max(runs.back().last, run.last);
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

/// One file: a local copy as long as every piece used has the right hash, else the mirror.
class RemoteFile {
 public:
  RemoteFile(const ManifestFile& file, const RemoteOptions& options)
      : file_(file),
        folder_(options.cache_folder / file.sha256.hex()),
        copies_(find_local_copies(options.extra_roots, file)),
        proven_(file.pieces.size()) {}

  const ManifestFile& manifest() const { return file_; }

  StatusOr<fs::path> path() {
    const std::lock_guard lock(mutex_);
    if (!copies_.empty()) return copies_.front();
    MESH_ASSIGN_OR_RETURN(const PieceStore* const store, open_store());
    return store->data_path();
  }

  /// Bytes of `runs` in the local copy whose hashes are still to be checked; 0 without a copy.
  std::uint64_t unproven_bytes(const std::vector<PieceRun>& runs) {
    const std::lock_guard lock(mutex_);
    std::uint64_t bytes = 0;
    if (copies_.empty()) return bytes;
    for_each_piece(runs, [&](std::uint64_t piece) {
      if (!proven_[piece]) bytes += piece_size(file_.size, piece);
      return true;
    });
    return bytes;
  }

  /// Checks `runs` in the local copies; drops each that proves wrong.
  Status prove(const std::vector<PieceRun>& runs, ProgressMeter& meter) {
    const std::lock_guard lock(mutex_);
    while (!copies_.empty()) {
      MESH_ASSIGN_OR_RETURN(const bool right, prove_first(runs, meter));
      if (right) break;
      copies_.erase(copies_.begin());
      proven_.assign(proven_.size(), false);
    }
    return absl::OkStatus();
  }

  /// Bytes of `runs` that have to be fetched: 0 while a local copy is in use.
  StatusOr<std::uint64_t> missing_bytes(const std::vector<PieceRun>& runs) {
    const std::lock_guard lock(mutex_);
    if (!copies_.empty()) return 0;
    MESH_ASSIGN_OR_RETURN(PieceStore* const store, open_store());
    if (sum_missing(*store, runs) == 0) return 0;
    MESH_RETURN_IF_ERROR(store->refresh());
    return sum_missing(*store, runs);
  }

  Status fetch(const std::vector<PieceRun>& runs, RangeSource& source, ProgressMeter& meter) {
    PieceStore* store = nullptr;
    {
      const std::lock_guard lock(mutex_);
      MESH_ASSIGN_OR_RETURN(store, open_store());
    }
    return fetch_pieces(file_, runs, *store, source, meter);
  }

 private:
  static std::uint64_t sum_missing(const PieceStore& store, const std::vector<PieceRun>& runs) {
    std::uint64_t missing = 0;
    for (const PieceRun& run : runs) missing += store.missing_bytes(run);
    return missing;
  }

  StatusOr<PieceStore*> open_store() {
    if (store_ == nullptr) {
      MESH_ASSIGN_OR_RETURN(store_, PieceStore::open(folder_, file_.size));
    }
    return store_.get();
  }

  /// Calls `visit` with each piece until it returns false; whether it never did.
  template <class Visit>
  static bool for_each_piece(const std::vector<PieceRun>& runs, const Visit& visit) {
    for (const PieceRun& run : runs) {
      for (std::uint64_t piece = run.first; piece < run.last; ++piece) {
        if (!visit(piece)) return false;
      }
    }
    return true;
  }

  /// Whether the first local copy has the right bytes in all these pieces; an error only when cancelled.
  StatusOr<bool> prove_first(const std::vector<PieceRun>& runs, ProgressMeter& meter) {
    const fs::path& path = copies_.front();
    const auto input = open_for_reading(path);
    if (!input.ok()) return false;
    Status cancelled;
    const bool right = for_each_piece(runs, [&](std::uint64_t piece) {
      if (proven_[piece]) return true;
      const std::uint64_t size = piece_size(file_.size, piece);
      const auto bytes = read_at(*input, piece * kPieceBytes, size, path);
      if (!bytes.ok() || sha256(*bytes) != file_.pieces[piece]) return false;
      proven_[piece] = true;
      cancelled = meter.add(size);
      return cancelled.ok();
    });
    MESH_RETURN_IF_ERROR(cancelled);
    return right;
  }

  const ManifestFile& file_;
  const fs::path folder_;
  std::mutex mutex_;  // guards what follows; not held while fetching
  std::vector<fs::path> copies_;
  std::vector<bool> proven_;  // pieces of the first copy
  std::unique_ptr<PieceStore> store_;
};

class RemoteFiles final : public ModelFiles {
 public:
  RemoteFiles(Manifest manifest, std::shared_ptr<RangeSource> source, RemoteOptions options)
      : manifest_(std::move(manifest)), source_(std::move(source)), options_(std::move(options)) {
    for (const ManifestFile& file : manifest_.files) {
      sizes_.emplace(file.name, file.size);
      files_.emplace(file.name, std::make_unique<RemoteFile>(file, options_));
    }
  }

  std::string describe() const override { return options_.description; }
  const std::map<std::string, std::uint64_t, std::less<>>& files() const override { return sizes_; }

  StatusOr<fs::path> path(std::string_view name) override {
    const auto found = files_.find(name);
    if (found == files_.end()) return error(StatusCode::kNotFound, "{} has no file {}", describe(), name);
    return found->second->path();
  }

  Status ensure(const FileRanges& wanted, const ProgressFn& progress) override {
    MESH_RETURN_IF_ERROR(check_ranges(*this, wanted));
    struct Part {
      RemoteFile* file;
      std::vector<PieceRun> runs;
    };
    std::vector<Part> parts;
    std::uint64_t unproven = 0;
    for (const auto& [name, ranges] : wanted) {
      parts.push_back({files_.find(name)->second.get(), touched_pieces(ranges)});
      unproven += parts.back().file->unproven_bytes(parts.back().runs);
    }
    if (unproven > 0) {
      ProgressMeter meter(progress, unproven);
      for (const Part& part : parts) MESH_RETURN_IF_ERROR(part.file->prove(part.runs, meter));
      meter.finish();
    }
    std::uint64_t total = 0;
    for (const Part& part : parts) {
      MESH_ASSIGN_OR_RETURN(const std::uint64_t bytes, part.file->missing_bytes(part.runs));
      total += bytes;
    }
    if (total == 0) return absl::OkStatus();
    MESH_RETURN_IF_ERROR(check_disk(total));
    ProgressMeter meter(progress, total);
    for (const Part& part : parts) {
      // A file whose local copy is in use has nothing missing.
      MESH_ASSIGN_OR_RETURN(const std::uint64_t bytes, part.file->missing_bytes(part.runs));
      if (bytes == 0) continue;
      const Status status = part.file->fetch(part.runs, *source_, meter);
      if (!status.ok()) return with_context(status, describe());
    }
    meter.finish();
    return absl::OkStatus();
  }

 private:
  Status check_disk(std::uint64_t needed) const {
    std::error_code failed;
    const fs::space_info space = fs::space(options_.cache_folder, failed);
    if (failed) {
      return error(StatusCode::kUnavailable, "cannot read the free space of {}: {}",
                   options_.cache_folder.string(), failed.message());
    }
    if (space.available >= needed && space.available - needed >= options_.disk_reserve)
      return absl::OkStatus();
    return error(
        StatusCode::kResourceExhausted,
        "{}: {} bytes to fetch and {} to keep free, but {} has only {} free; free some or give another "
        "cache folder",
        describe(), needed, options_.disk_reserve, options_.cache_folder.string(), space.available);
  }

  const Manifest manifest_;
  const std::shared_ptr<RangeSource> source_;
  const RemoteOptions options_;
  std::map<std::string, std::uint64_t, std::less<>> sizes_;
  std::map<std::string, std::unique_ptr<RemoteFile>, std::less<>> files_;
};

}  // namespace

StatusOr<std::shared_ptr<ModelFiles>> open_remote(Manifest manifest, std::shared_ptr<RangeSource> source,
                                                  RemoteOptions options) {
  std::error_code failed;
  std::filesystem::create_directories(options.cache_folder, failed);
  if (failed) {
    return error(StatusCode::kUnavailable, "cannot make the cache folder {}: {}",
                 options.cache_folder.string(), failed.message());
  }
  return std::make_shared<RemoteFiles>(std::move(manifest), std::move(source), std::move(options));
}

}  // namespace mesh::hub
