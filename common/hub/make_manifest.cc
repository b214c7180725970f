#include <sys/stat.h>

#include <algorithm>
#include <future>
#include <optional>

#include "common/hub/file_io.h"
#include "common/hub/manifest.h"
#include "common/hub/manifest_json.h"
#include "common/identity/sha256.h"

namespace mesh::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kReadBytes = 8 * kPieceBytes;
static_assert(kReadBytes % kPieceBytes == 0);
// A kept result names one file; its pieces are the bulk of it.
constexpr std::uint64_t kMaxKeptBytes = kMaxManifestBytes;

/// What must be unchanged for a kept hash to count.
struct FileKey {
  std::uint64_t size = 0;
  std::uint64_t mtime_ns = 0;
  std::uint64_t inode = 0;
  friend bool operator==(const FileKey&, const FileKey&) = default;
};

StatusOr<FileKey> key_of(const fs::path& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return errno_status("cannot read", path);
  const auto seconds = static_cast<std::uint64_t>(info.st_mtim.tv_sec);
  return FileKey{.size = static_cast<std::uint64_t>(info.st_size),
                 .mtime_ns = seconds * 1'000'000'000 + static_cast<std::uint64_t>(info.st_mtim.tv_nsec),
                 .inode = info.st_ino};
}

fs::path kept_path(const fs::path& cache_folder, const fs::path& path) {
  return cache_folder / "hashes" / (sha256(path.string()).hex() + ".json");
}

StatusOr<ManifestFile> parse_kept(std::string_view text, const fs::path& path, const FileKey& key) {
  MESH_ASSIGN_OR_RETURN(const json::Value parsed,
                        json::parse(text, {.max_bytes = kMaxKeptBytes, .max_depth = 4}));
  const json::View view(parsed);
  FileKey kept;
  MESH_ASSIGN_OR_RETURN(const std::string kept_path, view.get<std::string>("path"));
  MESH_ASSIGN_OR_RETURN(kept.size, view.get<std::uint64_t>("size"));
  MESH_ASSIGN_OR_RETURN(kept.mtime_ns, view.get<std::uint64_t>("mtime_ns"));
  MESH_ASSIGN_OR_RETURN(kept.inode, view.get<std::uint64_t>("inode"));
  if (kept_path != path.string() || kept != key) return view.error("the file changed");
  MESH_ASSIGN_OR_RETURN(const json::View file_view, view.field("file"));
  MESH_ASSIGN_OR_RETURN(ManifestFile file, file_from_json(file_view));
  if (file.size != key.size) return view.error("the size differs");
  return file;
}

/// The kept result; nothing when there is none or the file changed.
std::optional<ManifestFile> find_kept(const fs::path& cache_folder, const fs::path& path,
                                      const FileKey& key) {
  if (cache_folder.empty()) return std::nullopt;
  const auto text = read_whole(kept_path(cache_folder, path), kMaxKeptBytes);
  if (!text.ok()) return std::nullopt;
  auto file = parse_kept(*text, path, key);
  return file.ok() ? std::optional(*std::move(file)) : std::nullopt;
}

Status keep(const fs::path& cache_folder, const fs::path& path, const FileKey& key,
            const ManifestFile& file) {
  if (cache_folder.empty()) return absl::OkStatus();
  std::error_code failed;
  fs::create_directories(cache_folder / "hashes", failed);
  if (failed) {
    return error(StatusCode::kUnavailable, "cannot make {}: {}", (cache_folder / "hashes").string(),
                 failed.message());
  }
  return write_whole(kept_path(cache_folder, path),
                     json::serialize(json::Object{{"path", path.string()},
                                                  {"size", key.size},
                                                  {"mtime_ns", key.mtime_ns},
                                                  {"inode", key.inode},
                                                  {"file", file_to_json(file)}}));
}

/// Reads the file once; its own hash and those of its pieces are made on two threads.
Status hash_file(const fs::path& path, ManifestFile& file, ProgressMeter& meter) {
  MESH_ASSIGN_OR_RETURN(const File input, open_for_reading(path));
  Sha256Stream whole;
  for (std::uint64_t offset = 0; offset < file.size; offset += kReadBytes) {
    const std::uint64_t length = std::min(kReadBytes, file.size - offset);
    MESH_ASSIGN_OR_RETURN(const std::string bytes, read_at(input, offset, length, path));
    const auto update = [&] { whole.update(bytes); };
    const std::future<void> other =
        std::async(length > kPieceBytes ? std::launch::async : std::launch::deferred, update);
    for (std::uint64_t at = 0; at < length; at += kPieceBytes) {
      file.pieces.push_back(sha256(std::string_view(bytes).substr(at, kPieceBytes)));
    }
    other.wait();
    MESH_RETURN_IF_ERROR(meter.add(length));
  }
  file.sha256 = whole.finish();
  return absl::OkStatus();
}

}  // namespace

StatusOr<Manifest> make_manifest(ModelFiles& files, const fs::path& cache_folder,
                                 const ProgressFn& progress) {
  struct Job {
    fs::path path;
    FileKey key;
    std::size_t at;  // in manifest.files
  };
  Manifest manifest;
  std::vector<Job> jobs;
  std::uint64_t total = 0;
  for (const auto& [name, size] : files.files()) {
    MESH_ASSIGN_OR_RETURN(const fs::path path, files.ensured_path(name, {0, size}));
    MESH_ASSIGN_OR_RETURN(const FileKey key, key_of(path));
    if (key.size != size)
      return error(StatusCode::kAborted, "{} changed since the model was opened", path.string());
    ManifestFile file{.name = name, .size = size, .sha256 = {}, .pieces = {}};
    if (auto kept = find_kept(cache_folder, path, key)) {
      file.sha256 = kept->sha256;
      file.pieces = std::move(kept->pieces);
    } else {
      jobs.push_back({path, key, manifest.files.size()});
      total += size;
    }
    manifest.files.push_back(std::move(file));
  }
  ProgressMeter meter(progress, total);
  for (const Job& job : jobs) {
    ManifestFile& file = manifest.files[job.at];
    MESH_RETURN_IF_ERROR(hash_file(job.path, file, meter));
    MESH_ASSIGN_OR_RETURN(const FileKey after, key_of(job.path));
    if (after != job.key) {
      return error(StatusCode::kAborted, "{} changed while it was hashed", job.path.string());
    }
    MESH_RETURN_IF_ERROR(keep(cache_folder, job.path, job.key, file));
  }
  meter.finish();
  return manifest;
}

}  // namespace mesh::hub
