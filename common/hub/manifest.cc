#include "common/hub/manifest.h"

#include <algorithm>

#include "common/base/checked.h"
#include "common/base/printable.h"
#include "common/hub/file_names.h"
#include "common/hub/manifest_json.h"
#include "common/identity/sha256.h"

namespace mesh::hub {
namespace {

constexpr std::uint64_t kVersion = 1;

}  // namespace

const ManifestFile* Manifest::find(std::string_view name) const {
  const auto at =
      std::lower_bound(files.begin(), files.end(), name,
                       [](const ManifestFile& file, std::string_view wanted) { return file.name < wanted; });
  return at != files.end() && at->name == name ? &*at : nullptr;
}

std::uint64_t piece_count(std::uint64_t size) {
  return size / kPieceBytes + (size % kPieceBytes != 0 ? 1 : 0);
}

std::uint64_t piece_size(std::uint64_t size, std::uint64_t piece) {
  return std::min(kPieceBytes, size - piece * kPieceBytes);
}

json::Object file_to_json(const ManifestFile& file) {
  std::string pieces;
  pieces.reserve(file.pieces.size() * 2 * Sha256::kSize);
  for (const Sha256& piece : file.pieces) pieces += piece.hex();
  return {
      {"name", file.name}, {"size", file.size}, {"sha256", file.sha256.hex()}, {"pieces", std::move(pieces)}};
}

StatusOr<ManifestFile> file_from_json(const json::View& view) {
  ManifestFile file;
  MESH_ASSIGN_OR_RETURN(file.name, view.get<std::string>("name"));
  if (!is_file_name(file.name)) return view.error("no model file can be named " + printable(file.name));
  MESH_ASSIGN_OR_RETURN(file.size, view.get<std::uint64_t>("size"));
  MESH_ASSIGN_OR_RETURN(file.sha256, view.get<Sha256>("sha256"));
  MESH_ASSIGN_OR_RETURN(const std::string hex, view.get<std::string>("pieces"));
  constexpr std::size_t kDigits = 2 * Sha256::kSize;
  if (hex.size() % kDigits != 0 || hex.size() / kDigits != piece_count(file.size)) {
    return view.error(fmt::format("pieces has {} digits for {} pieces", hex.size(), piece_count(file.size)));
  }
  file.pieces.reserve(hex.size() / kDigits);
  for (std::size_t at = 0; at < hex.size(); at += kDigits) {
    const auto piece = Sha256::parse(std::string_view(hex).substr(at, kDigits));
    if (!piece) return view.error("pieces is not hex");
    file.pieces.push_back(*piece);
  }
  return file;
}

std::string manifest_json(const Manifest& manifest) {
  json::Array files;
  files.reserve(manifest.files.size());
  for (const ManifestFile& file : manifest.files) files.emplace_back(file_to_json(file));
  return json::serialize(
      json::Object{{"version", kVersion}, {"piece_bytes", kPieceBytes}, {"files", std::move(files)}});
}

StatusOr<Manifest> parse_manifest(std::string_view text) {
  const json::Limits limits = {.max_bytes = kMaxManifestBytes, .max_depth = 4};
  MESH_ASSIGN_OR_RETURN(const json::Value parsed, json::parse(text, limits));
  const json::View view(parsed);
  MESH_ASSIGN_OR_RETURN(const auto version, view.get<std::uint64_t>("version"));
  MESH_ASSIGN_OR_RETURN(const auto piece_bytes, view.get<std::uint64_t>("piece_bytes"));
  if (version != kVersion || piece_bytes != kPieceBytes) {
    return view.error(fmt::format("manifest version {} with pieces of {} bytes; known is {} with {}", version,
                                  piece_bytes, kVersion, kPieceBytes));
  }
  MESH_ASSIGN_OR_RETURN(const json::View list, view.field("files"));
  MESH_ASSIGN_OR_RETURN(const std::vector<json::View> entries, list.elements());
  Manifest manifest;
  manifest.files.reserve(entries.size());
  std::int64_t total = 0;
  for (const json::View& entry : entries) {
    MESH_ASSIGN_OR_RETURN(ManifestFile file, file_from_json(entry));
    if (!manifest.files.empty() && manifest.files.back().name >= file.name) {
      return entry.error("files must be sorted by name, each name once");
    }
    // The count of pieces was checked against the size, so the size is bounded by the text's own length.
    const auto sum = checked_add(total, static_cast<std::int64_t>(file.size));
    if (!sum) return entry.error("the sizes' sum overflows");
    total = *sum;
    manifest.files.push_back(std::move(file));
  }
  return manifest;
}

ModelIdentity identity_of(const Manifest& manifest, std::string_view quantization,
                          std::string_view compute_type) {
  std::vector<std::string> lines;
  for (const ManifestFile& file : manifest.files) {
    lines.push_back(fmt::format("{} {} {}\n", file.name, file.size, file.sha256.hex()));
  }
  std::sort(lines.begin(), lines.end());
  Sha256Stream hash;
  for (const std::string& line : lines) hash.update(line);
  hash.update(fmt::format("quantization {}\ncompute {}\n", quantization, compute_type));
  return {.bytes = hash.finish().bytes};
}

}  // namespace mesh::hub
