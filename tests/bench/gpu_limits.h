#pragma once

#include <memory>

namespace mesh::bench {

/// How fast the GPU reads: the best of the passes over a buffer of 8 GiB of values that differ. Passes are to
/// be spread over the run that they judge.
class GpuReadLimit {
 public:
  /// Null when there is no GPU or no memory.
  static std::unique_ptr<GpuReadLimit> create();
  virtual ~GpuReadLimit() = default;
  virtual void pass() = 0;
  virtual double bytes_per_second() const = 0;
};

}  // namespace mesh::bench
