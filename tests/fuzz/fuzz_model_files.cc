// Texts that describe a model's files: a manifest from the tracker, a shard index, and names.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/hub/file_names.h"
#include "common/hub/manifest.h"
#include "common/hub/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mesh::hub;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto manifest = parse_manifest(text); manifest.ok()) {
    for (const ManifestFile& file : manifest->files) {
      if (!is_file_name(file.name) || file.pieces.size() != piece_count(file.size)) std::abort();
    }
    const auto again = parse_manifest(manifest_json(*manifest));
    if (!again.ok() || *again != *manifest) std::abort();
  }
  if (const auto index = parse_shard_index(text); index.ok()) {
    for (const auto& [tensor, file] : *index) {
      if (file.find('/') != std::string::npos || !is_file_name(file)) std::abort();
    }
  }
  if (is_file_name(text) && text.find('/') != std::string_view::npos) std::abort();
  if (is_model_id(text) && (text.starts_with("../") || text.ends_with("/.."))) std::abort();
  return 0;
}
