#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "common/identity/key_pair.h"
#include "common/identity/random.h"
#include "common/identity/sodium.h"

// A key file is one line: "meshnet-ed25519 " and the 32-byte seed in hex.
namespace mesh {
namespace {

constexpr std::string_view kPrefix = "meshnet-ed25519 ";
constexpr std::size_t kFileBytes = kPrefix.size() + 64 + 1;

std::string last_error() {
  return std::strerror(errno);
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

Status write_all(int descriptor, std::string_view bytes, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return error(StatusCode::kInternal, "cannot write {}: {}", name, last_error());
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fsync(descriptor) != 0)
    return error(StatusCode::kInternal, "cannot write {}: {}", name, last_error());
  return absl::OkStatus();
}

}  // namespace

StatusOr<KeyPair> KeyPair::load(const std::filesystem::path& path) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    const StatusCode code = errno == ENOENT ? StatusCode::kNotFound : StatusCode::kFailedPrecondition;
    return error(code, "cannot open key file {}: {}", path.string(), last_error());
  }
  struct stat info{};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return error(StatusCode::kFailedPrecondition, "{} is not a file", path.string());
  }
  if ((info.st_mode & 077) != 0) {
    return error(StatusCode::kFailedPrecondition, "others may read key file {} (mode {:o}): run chmod 600 {}",
                 path.string(), info.st_mode & 0777, path.string());
  }
  std::string text(kFileBytes + 1, '\0');
  const ssize_t count = ::read(file.get(), text.data(), text.size());
  std::optional<std::string> seed;
  if (count == static_cast<ssize_t>(kFileBytes) && text.starts_with(kPrefix) &&
      text[kFileBytes - 1] == '\n') {
    seed = from_hex(std::string_view(text).substr(kPrefix.size(), 64));
  }
  sodium_memzero(text.data(), text.size());
  if (!seed) {
    return error(StatusCode::kFailedPrecondition,
                 "{} is no key file: it should hold \"{}\" and 64 hex digits. Restore it, or move it away "
                 "for a new identity",
                 path.string(), kPrefix);
  }
  std::array<std::uint8_t, 32> bytes;
  std::copy(seed->begin(), seed->end(), bytes.begin());
  KeyPair pair = from_seed(bytes);
  sodium_memzero(seed->data(), seed->size());
  sodium_memzero(bytes.data(), bytes.size());
  return pair;
}

Status KeyPair::save(const std::filesystem::path& path) const {
  std::error_code failure;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), failure);
  if (failure) {
    return error(StatusCode::kFailedPrecondition, "cannot make folder {}: {}", path.parent_path().string(),
                 failure.message());
  }
  const std::string draft = path.string() + ".new-" + to_hex(random_bytes(8));
  const File file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0) {
    return error(StatusCode::kFailedPrecondition, "cannot make key file {}: {}", draft, last_error());
  }
  std::array<unsigned char, crypto_sign_SEEDBYTES> seed;
  crypto_sign_ed25519_sk_to_seed(seed.data(), secret_.data());
  std::string text(kPrefix);
  text += to_hex({reinterpret_cast<const char*>(seed.data()), seed.size()});
  text += '\n';
  Status status = write_all(file.get(), text, draft);
  sodium_memzero(text.data(), text.size());
  sodium_memzero(seed.data(), seed.size());
  // A link, unlike a rename, never replaces a key that another process saved meanwhile.
  if (status.ok() && ::link(draft.c_str(), path.c_str()) != 0) {
    const StatusCode code = errno == EEXIST ? StatusCode::kAlreadyExists : StatusCode::kFailedPrecondition;
    status = error(code, "cannot save key file {}: {}", path.string(), last_error());
  }
  ::unlink(draft.c_str());
  return status;
}

StatusOr<KeyPair> KeyPair::load_or_create(const std::filesystem::path& path) {
  StatusOr<KeyPair> loaded = load(path);
  if (loaded.ok() || loaded.status().code() != StatusCode::kNotFound) return loaded;
  KeyPair pair = generate();
  const Status saved = pair.save(path);
  if (saved.code() == StatusCode::kAlreadyExists) return load(path);
  MESH_RETURN_IF_ERROR(saved);
  return pair;
}

}  // namespace mesh
