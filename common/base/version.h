#pragma once

#include <string>
#include <string_view>

namespace mesh {

/// "0.1.0"
std::string_view program_version();
/// Short hash of the source's commit, or "unknown".
std::string_view program_commit();
/// What --version prints: "meshnet-node 0.1.0 (commit abc), wire versions 1, CUDA part: ...".
std::string version_text(std::string_view program, std::string_view wire_versions,
                         std::string_view cuda_part);

}  // namespace mesh
