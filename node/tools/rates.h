#pragma once

#include <cstddef>
#include <memory>

#include "common/base/status.h"

namespace mesh::tools {

/// How fast this machine's memory is read: the best of the passes over a buffer that is not constant, all
/// threads at once. Passes are to be spread over the run that they judge.
class ReadRate {
 public:
  /// kResourceExhausted without memory.
  static StatusOr<std::unique_ptr<ReadRate>> create(unsigned threads, std::size_t bytes);
  virtual ~ReadRate() = default;
  virtual void pass() = 0;
  virtual double bytes_per_second() const = 0;
};

/// How fast it multiplies float32 matrices, by the engine's own kernels: the best of the passes over a
/// product of 256 rows with a matrix of 2048 × 2048.
class ProductRate {
 public:
  static StatusOr<std::unique_ptr<ProductRate>> create(unsigned threads);
  virtual ~ProductRate() = default;
  virtual void pass() = 0;
  virtual double flops() const = 0;  ///< a multiplication and an addition are two
};

}  // namespace mesh::tools
