#pragma once

#include <memory>
#include <string>

#include "node/tools/rates.h"

namespace mesh::bench {

/// What this machine can do at most, measured in this process; benchmarks give their figures as shares of it.
struct MachineLimits {
  double read_bytes_per_s = 0;  ///< best of the passes over 1 GiB that is not constant, all cores
  double matrix_flops = 0;      ///< best of the float32 2048³ products (ATen), all cores
};

/// Measures both in passes, to be spread over the run that they judge.
class LimitMeter {
 public:
  /// Ends the program without 1 GiB of memory.
  explicit LimitMeter(unsigned threads);
  void pass();
  MachineLimits best() const;

 private:
  const unsigned threads_;
  std::unique_ptr<tools::ReadRate> read_;
  double matrix_flops_ = 0;
};

/// Ten passes at once.
MachineLimits measure_limits(int threads);
/// Rate of one float32 2048³ product.
double matrix_rate_pass(int threads);
std::string to_string(const MachineLimits& limits);

}  // namespace mesh::bench
