#pragma once

#include <cstdint>
#include <string>

namespace mesh {

/// "19.9 GiB": for people, three or four digits. config::format_size is exact.
std::string about_size(std::uint64_t bytes);

}  // namespace mesh
