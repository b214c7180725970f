#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mesh {

/// Wire versions that this program speaks, and the same as text.
std::vector<std::uint32_t> wire_versions();
std::string wire_versions_text();
/// Whether the shared object for CUDA lies beside the program.
std::string cuda_part_text();

}  // namespace mesh
