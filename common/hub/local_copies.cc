#include "common/hub/local_copies.h"

namespace mesh::hub {

namespace fs = std::filesystem;

std::vector<fs::path> find_local_copies(const std::vector<fs::path>& roots, const ManifestFile& file) {
  std::vector<fs::path> found;
  const auto consider = [&](const fs::path& path) {
    std::error_code failed;
    if (!fs::is_regular_file(path, failed) || fs::file_size(path, failed) != file.size || failed) return;
    const fs::path real = fs::canonical(path, failed);
    if (!failed) found.push_back(real);
  };
  for (const fs::path& root : roots) {
    consider(root / file.name);
    std::error_code failed;
    for (fs::directory_iterator entry(root, failed), end; !failed && entry != end; entry.increment(failed)) {
      std::error_code ignored;
      if (!entry->is_directory(ignored)) continue;
      if (entry->path().filename().string().starts_with("models--")) {
        consider(entry->path() / "blobs" / file.sha256.hex());
      } else {
        consider(entry->path() / file.name);
      }
    }
  }
  return found;
}

}  // namespace mesh::hub
