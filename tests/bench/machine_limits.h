#pragma once

#include <string>

namespace mesh::bench {

/// What this machine can do at most, measured in this process just now; benchmarks give their figures as
/// shares of it.
struct MachineLimits {
  double read_bytes_per_s = 0;  ///< best of ten passes over 1 GiB that is not constant, all cores
  double matrix_flops = 0;      ///< best of ten float32 2048³ products (ATen), all cores
};

MachineLimits measure_limits(int threads);
/// The matrix rate alone.
double best_matrix_rate(int threads);
std::string to_string(const MachineLimits& limits);

}  // namespace mesh::bench
