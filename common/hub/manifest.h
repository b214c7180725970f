#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/hub/model_files.h"

namespace mesh::hub {

inline constexpr std::uint64_t kPieceBytes = 1 << 20;
/// Largest manifest that parse_manifest() takes: about 2 TB of weights.
inline constexpr std::uint64_t kMaxManifestBytes = 160u << 20;

struct ManifestFile {
  std::string name;
  std::uint64_t size = 0;
  Sha256 sha256;
  std::vector<Sha256> pieces;  // of each kPieceBytes, the last one shorter; none for an empty file

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

/// A model's files, sorted by name: what a node must hold to run it, and proof of each piece.
struct Manifest {
  std::vector<ManifestFile> files;

  const ManifestFile* find(std::string_view name) const;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// How many pieces a file of `size` bytes has.
std::uint64_t piece_count(std::uint64_t size);
/// Bytes of piece `piece` of a file of `size` bytes.
std::uint64_t piece_size(std::uint64_t size, std::uint64_t piece);

/// {"version":1,"piece_bytes":1048576,"files":[{"name","size","sha256","pieces"}]}; `pieces` is the hex of
/// all piece hashes one after another.
std::string manifest_json(const Manifest& manifest);
/// kInvalidArgument for bad names, doubled or unsorted files, counts of pieces that do not fit the size,
/// totals over 2^63.
StatusOr<Manifest> parse_manifest(std::string_view json);

/// SHA-256 over a line "<name> <size> <sha256 hex>\n" for each file by name (byte order), then
/// "quantization <quantization>\n" and "compute <compute_type>\n".
ModelIdentity identity_of(const Manifest& manifest, std::string_view quantization,
                          std::string_view compute_type);

/// Hashes every file of a local model in one pass. Results are kept under `cache_folder` by (path, size,
/// mtime, inode), so that only changed files are read again; an empty path keeps nothing. kAborted if a file
/// changes meanwhile.
StatusOr<Manifest> make_manifest(ModelFiles& files, const std::filesystem::path& cache_folder,
                                 const ProgressFn& progress = {});

}  // namespace mesh::hub
