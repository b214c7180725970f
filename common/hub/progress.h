#pragma once

#include <cstdint>
#include <functional>

namespace mesh::hub {

/// How far a fetch or a hashing pass is. `bytes_total` is what this call has to do, not the file's size.
struct Progress {
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
  double bytes_per_second = 0;
};

/// Called on the thread that does the work, at most about ten times a second and once at the end. May be
/// empty.
using ProgressFn = std::function<void(const Progress&)>;

}  // namespace mesh::hub
