#include "common/hub/piece_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "common/hub/manifest.h"

namespace mesh::hub {
namespace {

namespace fs = std::filesystem;

// Byte of the lock file that guards changes of the bits; pieces have bytes 0, 1, 2, …
constexpr std::uint64_t kBitsLock = std::uint64_t{1} << 60;

StatusOr<File> open_read_write(const fs::path& path) {
  File file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file) return errno_status("cannot open", path);
  return file;
}

/// Locks bytes [first, first + length) of the lock file. The lock belongs to this open file, so threads
/// exclude each other too.
StatusOr<File> lock_bytes(const fs::path& path, std::uint64_t first, std::uint64_t length, bool wait) {
  MESH_ASSIGN_OR_RETURN(File file, open_read_write(path));
  struct flock request{};
  request.l_type = F_WRLCK;
  request.l_whence = SEEK_SET;
  request.l_start = static_cast<off_t>(first);
  request.l_len = static_cast<off_t>(length);
  int result = 0;
  do {
    result = ::fcntl(file.fd(), wait ? F_OFD_SETLKW : F_OFD_SETLK, &request);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return file;
  if (!wait && (errno == EAGAIN || errno == EACCES)) {
    return error(StatusCode::kAborted, "another loader has these pieces");
  }
  return errno_status("cannot lock", path);
}

Status set_size(const File& file, std::uint64_t size, const fs::path& path) {
  if (::ftruncate(file.fd(), static_cast<off_t>(size)) != 0)
    return errno_status("cannot set the size of", path);
  return absl::OkStatus();
}

Status sync(const File& file, const fs::path& path) {
  if (::fdatasync(file.fd()) != 0) return errno_status("cannot sync", path);
  return absl::OkStatus();
}

}  // namespace

PieceStore::PieceStore(const fs::path& folder, std::uint64_t file_size)
    : data_path_(folder / "data"),
      bits_path_(folder / "data.pieces"),
      lock_path_(folder / "lock"),
      file_size_(file_size),
      pieces_(piece_count(file_size)),
      bits_((pieces_ + 7) / 8, '\0') {}

StatusOr<std::unique_ptr<PieceStore>> PieceStore::open(const fs::path& folder, std::uint64_t file_size) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) return error(StatusCode::kUnavailable, "cannot make {}: {}", folder.string(), failed.message());
  std::unique_ptr<PieceStore> store(new PieceStore(folder, file_size));
  MESH_RETURN_IF_ERROR(store->open_files());
  return store;
}

Status PieceStore::open_files() {
  MESH_ASSIGN_OR_RETURN(const File lock, lock_bytes(lock_path_, kBitsLock, 1, true));
  MESH_ASSIGN_OR_RETURN(data_, open_read_write(data_path_));
  MESH_ASSIGN_OR_RETURN(bits_file_, open_read_write(bits_path_));
  MESH_ASSIGN_OR_RETURN(const std::uint64_t data_size, size_of(data_, data_path_));
  MESH_ASSIGN_OR_RETURN(const std::uint64_t bits_size, size_of(bits_file_, bits_path_));
  const std::uint64_t bits_bytes = (pieces_ + 7) / 8;
  if (data_size != file_size_ || bits_size != bits_bytes) {
    // New, or killed while it was made, or tampered with: no piece counts.
    MESH_RETURN_IF_ERROR(set_size(bits_file_, 0, bits_path_));
    MESH_RETURN_IF_ERROR(set_size(data_, file_size_, data_path_));
    MESH_RETURN_IF_ERROR(set_size(bits_file_, bits_bytes, bits_path_));
  }
  return refresh();
}

StatusOr<std::string> PieceStore::read_bits() const {
  return read_at(bits_file_, 0, (pieces_ + 7) / 8, bits_path_);
}

Status PieceStore::refresh() {
  MESH_ASSIGN_OR_RETURN(const std::string bits, read_bits());
  add_bits(bits);
  return absl::OkStatus();
}

void PieceStore::add_bits(std::string_view bits) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < bits.size(); ++i) bits_[i] = static_cast<char>(bits_[i] | bits[i]);
}

std::uint64_t PieceStore::missing_bytes(PieceRun run) const {
  std::uint64_t missing = 0;
  for (std::uint64_t piece = run.first; piece < run.last; ++piece) {
    if (!has(piece)) missing += piece_size(file_size_, piece);
  }
  return missing;
}

bool PieceStore::has(std::uint64_t piece) const {
  const std::lock_guard lock(mutex_);
  return (static_cast<unsigned char>(bits_[piece / 8]) >> (piece % 8) & 1) != 0;
}

StatusOr<PieceStore::Claim> PieceStore::claim(PieceRun run, bool wait) {
  MESH_ASSIGN_OR_RETURN(File lock, lock_bytes(lock_path_, run.first, run.size(), wait));
  return Claim(std::move(lock));
}

Status PieceStore::write(std::uint64_t piece, std::string_view bytes) {
  return write_at(data_, piece * kPieceBytes, bytes, data_path_);
}

Status PieceStore::commit(const std::vector<std::uint64_t>& pieces) {
  if (pieces.empty()) return absl::OkStatus();
  MESH_RETURN_IF_ERROR(sync(data_, data_path_));
  MESH_ASSIGN_OR_RETURN(const File lock, lock_bytes(lock_path_, kBitsLock, 1, true));
  MESH_ASSIGN_OR_RETURN(std::string bits, read_bits());
  for (const std::uint64_t piece : pieces) {
    bits[piece / 8] = static_cast<char>(static_cast<unsigned char>(bits[piece / 8]) | 1u << (piece % 8));
  }
  MESH_RETURN_IF_ERROR(write_at(bits_file_, 0, bits, bits_path_));
  add_bits(bits);
  return absl::OkStatus();
}

}  // namespace mesh::hub
