#include "common/host/host_share.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

namespace mesh {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".share";
constexpr std::string_view kLockFile = "lock";

/// A descriptor with an exclusive lock, closed at the end.
class Locked {
 public:
  static StatusOr<Locked> open(const fs::path& path) {
    Locked locked;
    locked.descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (locked.descriptor_ < 0 || ::flock(locked.descriptor_, LOCK_EX) != 0) {
      return error(StatusCode::kFailedPrecondition, "cannot lock {}", path.string());
    }
    return locked;
  }
  Locked(Locked&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  ~Locked() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

 private:
  Locked() = default;
  int descriptor_ = -1;
};

/// Bytes resident of a process; 0 when it is gone.
std::uint64_t resident_bytes(long pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  if (!(file >> total >> resident)) return 0;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

struct Neighbours {
  unsigned programs = 0;
  std::uint64_t promised = 0;  ///< reserved by others and not yet in use by them
  std::string holders;
};

/// Whoever holds the lock of a file lives; a file that nobody locks is removed.
Neighbours look_around(const fs::path& folder, const fs::path& own) {
  Neighbours found;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (entry.path().extension() != kSuffix || entry.path() == own) continue;
    const int descriptor = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0) continue;
    const bool dead = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    if (dead) fs::remove(entry.path(), code);
    ::close(descriptor);
    if (dead) continue;
    std::ifstream file(entry.path());
    long pid = 0;
    std::uint64_t memory = 0;
    std::string program;
    if (!(file >> pid >> memory >> program)) continue;
    const std::uint64_t resident = resident_bytes(pid);
    ++found.programs;
    found.promised += memory > resident ? memory - resident : 0;
    found.holders += fmt::format(" {} ({} bytes, process {})", program, memory, pid);
  }
  return found;
}

Status no_room(std::uint64_t needed, std::uint64_t available, const Neighbours& neighbours) {
  return error(StatusCode::kResourceExhausted,
               "{} bytes of memory needed, {} available of which others reserved {}:{}; give a smaller "
               "--memory or stop "
               "one of them",
               needed, available, neighbours.promised,
               neighbours.holders.empty() ? " nobody" : neighbours.holders);
}

Status check_folder(const fs::path& folder) {
  std::error_code code;
  fs::create_directories(folder, code);
  struct stat info{};
  if (::lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return error(StatusCode::kFailedPrecondition, "cannot make the runtime folder {}", folder.string());
  }
  if (info.st_uid != ::geteuid()) {
    return error(StatusCode::kFailedPrecondition,
                 "the runtime folder {} belongs to another user: set XDG_RUNTIME_DIR", folder.string());
  }
  ::chmod(folder.c_str(), 0700);
  return absl::OkStatus();
}

std::optional<std::uint64_t> read_number(const char* path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

}  // namespace

fs::path runtime_folder() {
  const char* given = std::getenv("XDG_RUNTIME_DIR");
  if (given != nullptr && *given == '/') return fs::path(given) / "meshnet";
  return "/tmp/meshnet-" + std::to_string(::geteuid());
}

StatusOr<std::uint64_t> available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  std::optional<std::uint64_t> available;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t kibibytes = 0;
    if (words >> name >> kibibytes && name == "MemAvailable:") available = kibibytes * 1024;
  }
  if (!available)
    return error(StatusCode::kUnavailable, "/proc/meminfo says nothing of MemAvailable: give --memory");
  const auto limit = read_number("/sys/fs/cgroup/memory.max");
  const auto used = read_number("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(*available, *limit > *used ? *limit - *used : 0);
  return *available;
}

unsigned usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

StatusOr<std::unique_ptr<HostShare>> HostShare::enter(const fs::path& folder, const Request& request) {
  MESH_RETURN_IF_ERROR(check_folder(folder));
  MESH_ASSIGN_OR_RETURN(const Locked lock, Locked::open(folder / kLockFile));
  const Neighbours neighbours = look_around(folder, {});
  MESH_ASSIGN_OR_RETURN(const std::uint64_t available, available_memory());
  const std::uint64_t unreserved = available > neighbours.promised ? available - neighbours.promised : 0;
  const std::uint64_t needed = request.memory ? *request.memory : kLeave + 1;
  if (needed > unreserved) return no_room(needed, available, neighbours);

  std::unique_ptr<HostShare> share(new HostShare);
  share->folder_ = folder;
  share->program_ = request.program;
  share->programs_ = neighbours.programs + 1;
  share->threads_ = request.threads ? *request.threads : std::max(1u, usable_cores() / share->programs_);
  share->memory_ = request.memory ? *request.memory : unreserved - kLeave;
  share->reserved_ = request.memory ? *request.memory : 0;
  share->file_ = folder / (std::to_string(::getpid()) + std::string(kSuffix));
  share->descriptor_ = ::open(share->file_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (share->descriptor_ < 0 || ::flock(share->descriptor_, LOCK_EX | LOCK_NB) != 0) {
    return error(StatusCode::kFailedPrecondition, "cannot write {}", share->file_.string());
  }
  MESH_RETURN_IF_ERROR(share->write());
  return share;
}

Status HostShare::reserve(std::uint64_t total) {
  if (total <= reserved_) return absl::OkStatus();
  MESH_ASSIGN_OR_RETURN(const Locked lock, Locked::open(folder_ / kLockFile));
  const Neighbours neighbours = look_around(folder_, file_);
  MESH_ASSIGN_OR_RETURN(const std::uint64_t available, available_memory());
  const std::uint64_t resident = resident_bytes(::getpid());
  const std::uint64_t needed = total > resident ? total - resident : 0;
  if (needed + std::min(available, neighbours.promised) > available)
    return no_room(needed, available, neighbours);
  reserved_ = total;
  return write();
}

Status HostShare::write() const {
  const std::string text = fmt::format("{} {} {}\n", ::getpid(), reserved_, program_);
  if (::ftruncate(descriptor_, 0) == 0 &&
      ::pwrite(descriptor_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size())) {
    return absl::OkStatus();
  }
  return error(StatusCode::kFailedPrecondition, "cannot write {}", file_.string());
}

HostShare::~HostShare() {
  if (descriptor_ < 0) return;
  std::error_code code;
  fs::remove(file_, code);
  ::close(descriptor_);
}

}  // namespace mesh
