#include "common/host/data_folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace mesh {

namespace fs = std::filesystem;

StatusOr<int> lock_data_folder(const fs::path& folder, std::string_view program) {
  std::error_code code;
  fs::create_directories(folder, code);
  const fs::path file = folder / "lock";
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0)
    return error(StatusCode::kFailedPrecondition, "cannot write to --data-dir {}", folder.string());
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return descriptor;
  ::close(descriptor);
  return error(StatusCode::kFailedPrecondition,
               "another {} uses the data folder {}: give this one a --data-dir of its own", program,
               folder.string());
}

}  // namespace mesh
