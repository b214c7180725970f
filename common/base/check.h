#pragma once

#include <string_view>

namespace mesh {
/// Prints `what` with its place to stderr and aborts.
[[noreturn]] void check_failed(std::string_view what, const char* file, int line);
}  // namespace mesh

/// For our own mistakes only, never for bytes from a peer, a file or a client: those give an absl::Status.
#define MESH_CHECK(condition)                                               \
  do {                                                                      \
    if (!(condition)) ::mesh::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
