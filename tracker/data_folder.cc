#include "tracker/data_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>

namespace mesh::tracker {

namespace fs = std::filesystem;

/// The key in `file`, which is made when it is not there.
StatusOr<JoinKey> load_join_key(const fs::path& file, const PublicKey& tracker) {
  if (!fs::exists(file)) {
    const JoinKey key = JoinKey::make(tracker);
    const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const std::string line = key.text() + "\n";
    const bool written = descriptor >= 0 &&
                         ::write(descriptor, line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
                         ::fsync(descriptor) == 0;
    if (descriptor >= 0) ::close(descriptor);
    if (!written)
      return error(StatusCode::kFailedPrecondition, "cannot write --join-key-file {}", file.string());
    return key;
  }
  std::ifstream in(file);
  std::string text;
  in >> text;
  auto key = JoinKey::parse(text);
  if (!key.ok()) return with_context(key.status(), fmt::format("--join-key-file {}", file.string()));
  if (!key->pins(tracker)) {
    return error(StatusCode::kFailedPrecondition,
                 "--join-key-file {} was made by another tracker (its key differs from that in --data-dir): "
                 "give another "
                 "file, and the new key to the nodes",
                 file.string());
  }
  return key;
}

}  // namespace mesh::tracker
