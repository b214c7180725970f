#include "node/versions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "common/wire/messages.h"

namespace mesh {

std::vector<std::uint32_t> wire_versions() {
  return {wire::kWireVersion};
}

std::string wire_versions_text() {
  return fmt::format("{}", fmt::join(wire_versions(), ", "));
}

std::string cuda_part_text() {
  std::error_code code;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", code);
  for (const char* place : {"libmeshnet_cuda.so", "../lib/libmeshnet_cuda.so"}) {
    if (!code && std::filesystem::exists(program.parent_path() / place, code)) return "there";
  }
  return "not built";
}

}  // namespace mesh
