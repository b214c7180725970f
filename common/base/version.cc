#include "common/base/version.h"

#include <fmt/format.h>

namespace mesh {

std::string_view program_version() {
  return MESH_VERSION;
}

std::string_view program_commit() {
  return MESH_COMMIT;
}

std::string version_text(std::string_view program, std::string_view wire_versions,
                         std::string_view cuda_part) {
  return fmt::format("{} {} (commit {}), wire versions {}, CUDA part: {}\n", program, program_version(),
                     program_commit(), wire_versions, cuda_part);
}

}  // namespace mesh
